//! Whether the publisher can work: reachable, signed in, a primary, permitted.

use outbox_core::{Error, ErrorKind, Result};
use redis::{Value, aio::MultiplexedConnection};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::{
    config::RedisConfig,
    connection::{Connector, setting},
    error,
};

const CHECK: &str = "check Redis";

/// Asks the server; writes nothing. What endangers events without forbidding anything is logged as
/// a warning.
pub(crate) async fn check(connector: &Connector, config: &RedisConfig) -> Result<()> {
    let link = connector.link().await?;
    let mut connection = link.connection;
    let asking = async {
        connector.probe(&mut connection).await?;
        role(&mut connection).await?;
        permissions(&mut connection, config.transactional).await?;
        warn_of_risks(&mut connection).await;
        if let Some(entries) = config.stream_entries_max {
            warn!(
                stream_entries_max = entries,
                "streams are trimmed: consumers further behind lose what they have not read"
            );
        }
        Ok(())
    };
    let checked = timeout(config.connect_timeout, asking)
        .await
        .unwrap_or_else(|_| Err(error::timeout(CHECK)));
    if checked.is_err() {
        // The next one may meet another server, or a mended one.
        connector.discard(link.generation);
    }
    checked
}

/// Only a primary takes writes. A user who may not ask is believed.
async fn role(connection: &mut MultiplexedConnection) -> Result<()> {
    let role = redis::cmd("ROLE")
        .query_async::<Vec<Value>>(connection)
        .await;
    let role = role.ok().and_then(|role| role.into_iter().next());
    match role {
        Some(Value::BulkString(role)) if role != b"master" => Err(Error::new(
            ErrorKind::ReadOnly,
            CHECK,
            "the server is a replica",
        )),
        _ => Ok(()),
    }
}

/// Asks for the permission to run the commands, where the server (7.0 and newer) and the user's
/// rights allow to ask. Which streams are permitted shows when one is written.
async fn permissions(connection: &mut MultiplexedConnection, transactional: bool) -> Result<()> {
    let whoami = redis::cmd("ACL").arg("WHOAMI").take();
    let Ok(user) = whoami.query_async::<String>(connection).await else {
        return Ok(());
    };
    let mut commands: Vec<&[&str]> = vec![&["XADD", "outbox-check", "*", "payload", ""]];
    if transactional {
        commands.extend([&["MULTI"][..], &["EXEC"][..]]);
    }
    for command in commands {
        let mut dry_run = redis::cmd("ACL");
        dry_run.arg("DRYRUN").arg(&user).arg(command);
        match dry_run.query_async::<String>(connection).await {
            Ok(answer) if answer.contains("to run the") => {
                return Err(Error::new(ErrorKind::Unauthorized, CHECK, answer));
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Ok(())
}

/// Settings under which acknowledged events can vanish.
async fn warn_of_risks(connection: &mut MultiplexedConnection) {
    let policy = setting(connection, "maxmemory-policy").await;
    let maxmemory = setting(connection, "maxmemory").await;
    let appendonly = setting(connection, "appendonly").await;
    if let Some(policy) = policy.filter(|policy| policy.starts_with("allkeys")) {
        warn!(%policy, "maxmemory-policy may evict whole streams when memory is full");
    } else if let Some(bytes) = maxmemory.filter(|bytes| bytes != "0") {
        info!(maxmemory = %bytes, "writes are refused when this memory is full; events wait then");
    }
    if appendonly.is_some_and(|appendonly| appendonly == "no") {
        warn!("appendonly is off: acknowledged events are lost when the server dies");
    }
}
