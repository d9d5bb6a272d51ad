//! Services that write orders, each with its event in one transaction, through restarts of their
//! database.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox_core::{Enqueue as _, ErrorKind, Event};
use outbox_postgres::PgOutbox;
use outbox_testkit::workload::{Fate, PlannedTransaction};
use sqlx::PgPool;
use tokio::task::JoinSet;
use uuid::Uuid;

/// How long a writer waits before it tries a transaction again.
const PAUSE: Duration = Duration::from_millis(20);

/// What became of the transactions.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) committed: Vec<Event>,
    pub(crate) rolled_back: BTreeSet<Uuid>,
    /// Transactions begun again because the database went away.
    pub(crate) begun_again: usize,
    /// Commits without an answer, resolved by reading.
    pub(crate) ambiguous: usize,
}

/// Why a transaction did not end as planned.
enum Broken {
    /// Before its commit was asked for: it is rolled back.
    Before,
    /// The commit was asked for and not answered.
    Commit,
}

/// The database went away; any other error is the test's or the system's fault.
fn away(error: &sqlx::Error) -> Broken {
    let is_away = match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(error) => error
            .code()
            .is_some_and(|code| code.starts_with("57P") || code.starts_with("08")),
        _ => false,
    };
    assert!(is_away, "{error}");
    Broken::Before
}

/// Carries out the transactions with so many writers at once; `finished` counts them as they end.
pub(crate) async fn write(
    pool: &PgPool,
    plan: Vec<PlannedTransaction>,
    writers: usize,
    finished: Arc<AtomicUsize>,
) -> Written {
    let mut tasks = JoinSet::new();
    let mut shares: Vec<Vec<PlannedTransaction>> = (0..writers).map(|_| Vec::new()).collect();
    for (number, transaction) in plan.into_iter().enumerate() {
        shares[number % writers].push(transaction);
    }
    for share in shares {
        tasks.spawn(work(pool.clone(), share, Arc::clone(&finished)));
    }
    let mut all = Written::default();
    while let Some(written) = tasks.join_next().await {
        let written = written.unwrap();
        all.committed.extend(written.committed);
        all.rolled_back.extend(written.rolled_back);
        all.begun_again += written.begun_again;
        all.ambiguous += written.ambiguous;
    }
    all
}

async fn work(pool: PgPool, share: Vec<PlannedTransaction>, finished: Arc<AtomicUsize>) -> Written {
    let outbox = PgOutbox::new("outbox").unwrap();
    let mut written = Written::default();
    for transaction in share {
        loop {
            match carry_out(&pool, &outbox, &transaction).await {
                Ok(()) => break,
                // Whatever broke it has rolled it back.
                Err(_) if transaction.fate == Fate::Rollback => break,
                Err(Broken::Before) => {}
                Err(Broken::Commit) => {
                    written.ambiguous += 1;
                    if is_committed(&pool, &transaction).await {
                        break;
                    }
                }
            }
            written.begun_again += 1;
            tokio::time::sleep(PAUSE).await;
        }
        match transaction.fate {
            Fate::Commit => written.committed.extend(transaction.events),
            Fate::Rollback => written
                .rolled_back
                .extend(transaction.events.iter().map(Event::id)),
        }
        finished.fetch_add(1, Ordering::Relaxed);
    }
    written
}

async fn carry_out(
    pool: &PgPool,
    outbox: &PgOutbox,
    planned: &PlannedTransaction,
) -> Result<(), Broken> {
    let mut transaction = pool.begin().await.map_err(|error| away(&error))?;
    for event in &planned.events {
        sqlx::query("INSERT INTO orders (event_id, number) VALUES ($1, $2)")
            .bind(event.id())
            .bind(&planned.key)
            .execute(&mut *transaction)
            .await
            .map_err(|error| away(&error))?;
        let enqueued = outbox.enqueue(&mut transaction, event).await;
        enqueued.map_err(|error| {
            let away = [
                ErrorKind::Unavailable,
                ErrorKind::ConnectionLost,
                ErrorKind::Timeout,
                ErrorKind::Protocol,
            ];
            assert!(away.contains(&error.kind()), "{error}");
            Broken::Before
        })?;
    }
    tokio::time::sleep(planned.hold).await;
    match planned.fate {
        Fate::Commit => transaction.commit().await.map_err(|error| {
            away(&error);
            Broken::Commit
        }),
        Fate::Rollback => transaction.rollback().await.map_err(|error| away(&error)),
    }
}

/// Reads what became of a commit whose answer was lost. Its session is gone for good once a new one
/// is let in, so the answer is final.
async fn is_committed(pool: &PgPool, planned: &PlannedTransaction) -> bool {
    let ids: Vec<Uuid> = planned.events.iter().map(Event::id).collect();
    loop {
        let found: Result<i64, _> =
            sqlx::query_scalar("SELECT count(*) FROM orders WHERE event_id = ANY ($1)")
                .bind(&ids)
                .fetch_one(pool)
                .await;
        match found {
            Ok(found) => return found > 0,
            Err(error) => {
                away(&error);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
