//! `outbox migrate`

use outbox_core::Migrated;

use crate::{
    args::{GlobalArgs, MigrateArgs},
    config::{Settings, StoreConfig},
    exit::Failure,
    output::print,
    store,
};

/// Brings the schema to this program's version, or verifies it.
pub(crate) async fn run(args: &MigrateArgs, config: StoreConfig) -> Result<(), Failure> {
    let store = store::open(config).await?;
    if args.check {
        store::check(&*store).await?;
        store::check_settings(&*store).await?;
        return print("the schema is of this program's version\n");
    }
    print(&told(store.migrate().await?))?;
    // What no migration makes.
    Ok(store::check_settings(&*store).await?)
}

/// What was done, a line each.
fn told(migrated: Migrated) -> String {
    let version = match (migrated.from, migrated.to) {
        (from, to) if from == to && migrated.also.is_none() => {
            format!("nothing to do: the schema is at version {to}\n")
        }
        (from, to) if from == to => format!("the schema is at version {to}\n"),
        (0, to) => format!("made the schema at version {to}\n"),
        (from, to) => format!("brought the schema from version {from} to version {to}\n"),
    };
    let also = migrated.also.map(|also| format!("{also}\n"));
    version + &also.unwrap_or_default()
}

/// Prints the SQL of all versions; no database is needed.
pub(crate) fn print_sql(settings: &Settings, global: &GlobalArgs) -> Result<(), Failure> {
    let schema = global
        .schema
        .as_deref()
        .or(settings.store.schema.as_deref());
    let url = global.store_url.as_ref().or(settings.store.url.as_ref());
    print(&store::migrations(settings.store.kind_for(url), schema)?)
}
