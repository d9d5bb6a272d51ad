//! Watches the relays' database sessions: no transaction of theirs may be open for long (I11).

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(25);

/// What was seen.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    /// Looks that found at least one session of a relay.
    pub(crate) looks: u64,
    /// The oldest transaction.
    pub(crate) oldest: Duration,
}

/// Looks again and again until told to stop; a server that is away is waited for.
pub(crate) struct TransactionWatch {
    stop: CancellationToken,
    task: JoinHandle<Seen>,
}

impl TransactionWatch {
    /// Watches the relays that work on the database of this URL.
    pub(crate) fn start(url: String) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(watch(url, stop.clone()));
        Self { stop, task }
    }

    pub(crate) async fn seen(self) -> Seen {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

async fn watch(url: String, stop: CancellationToken) -> Seen {
    let query = "SELECT count(*),
            coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
        FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'outbox'";
    let mut seen = Seen::default();
    let mut connection: Option<PgConnection> = None;
    while !stop.is_cancelled() {
        tokio::time::sleep(INTERVAL).await;
        let Some(open) = &mut connection else {
            connection = PgConnection::connect(&url).await.ok();
            continue;
        };
        match sqlx::query_as::<_, (i64, f64)>(AssertSqlSafe(query))
            .fetch_one(open)
            .await
        {
            Ok((sessions, oldest_s)) => {
                seen.looks += u64::from(sessions > 0);
                seen.oldest = seen.oldest.max(Duration::from_secs_f64(oldest_s.max(0.0)));
            }
            Err(_) => connection = None,
        }
    }
    seen
}
