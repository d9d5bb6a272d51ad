//! Running single statements on pooled connections, each within a time limit.

use std::{fmt, time::Duration};

use outbox_core::{Error, ErrorKind, Result};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Transaction,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::time::{error::Elapsed, timeout};

use crate::{error::from_sqlx, url};

/// A pool with what its errors need to say.
pub(crate) struct Database {
    pool: PgPool,
    server: String,
    call_timeout: Duration,
}

/// The server ends a statement at its own limit; ours is for a network that swallows everything.
const NETWORK_GRACE: Duration = Duration::from_secs(5);

/// Names the rights that a refused role lacks, which not every role needs: the server names the table
/// alone.
pub(super) fn needing(rights: &'static str) -> impl Fn(Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::Unauthorized => error.context("needs", rights),
        _ => error,
    }
}

impl Database {
    pub(crate) fn new(pool: PgPool, statement_timeout: Duration) -> Self {
        let server = url::server(&pool.connect_options());
        Self {
            pool,
            server,
            call_timeout: statement_timeout.saturating_add(NETWORK_GRACE),
        }
    }

    pub(crate) fn fail(&self, operation: &'static str, error: &sqlx::Error) -> Error {
        from_sqlx(operation, Some(&self.server), error)
    }

    /// A connection; its failure names the cause also where the pool only says that time is up.
    pub(crate) async fn connection(
        &self,
        operation: &'static str,
    ) -> Result<PoolConnection<Postgres>> {
        let error = match self.pool.acquire().await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if matches!(error, sqlx::Error::PoolTimedOut) {
            let options = self.pool.connect_options();
            let attempt = PgConnection::connect_with(&options);
            if let Ok(Err(cause)) = timeout(Duration::from_secs(1), attempt).await {
                return Err(self.fail(operation, &cause));
            }
        }
        Err(self.fail(operation, &error))
    }

    /// A connection to run a transaction on.
    pub(crate) async fn for_transaction(
        &self,
        operation: &'static str,
    ) -> Result<TransactionConnection> {
        let connection = self.connection(operation).await?;
        Ok(TransactionConnection {
            connection,
            ended: false,
        })
    }

    /// Runs a statement and returns its rows. A statement commits by itself: when this future is
    /// dropped, the server still finishes it and no transaction stays open.
    pub(crate) async fn rows(
        &self,
        operation: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        let mut connection = self.connection(operation).await?;
        let call = query.fetch_all(&mut *connection);
        let answer = timeout(self.call_timeout, call).await;
        self.conclude(operation, answer, &mut connection)
    }

    /// Runs a statement and returns the one row that it always has.
    pub(crate) async fn row(
        &self,
        operation: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<PgRow> {
        let rows = self.rows(operation, query).await?;
        rows.into_iter()
            .next()
            .ok_or_else(|| self.fail(operation, &sqlx::Error::RowNotFound))
    }

    /// Runs a statement and returns how many rows it changed.
    pub(crate) async fn execute(
        &self,
        operation: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64> {
        let mut connection = self.connection(operation).await?;
        let call = query.execute(&mut *connection);
        let answer = timeout(self.call_timeout, call).await;
        let done = self.conclude(operation, answer, &mut connection)?;
        Ok(done.rows_affected())
    }

    /// Runs several statements in one message, and so in one transaction: all of them or none.
    pub(crate) async fn script(&self, operation: &'static str, text: String) -> Result<()> {
        let mut connection = self.connection(operation).await?;
        let call = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *connection);
        let answer = timeout(self.call_timeout, call).await;
        self.conclude(operation, answer, &mut connection)?;
        Ok(())
    }

    /// What a call answered. A session that is no good for the next call does not go back to the
    /// pool: one that got no answer, one that the server ended, and one that began while the database
    /// was read-only and would stay so.
    fn conclude<T>(
        &self,
        operation: &'static str,
        answer: Result<sqlx::Result<T>, Elapsed>,
        connection: &mut PoolConnection<Postgres>,
    ) -> Result<T> {
        let (error, is_over) = match answer {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => {
                let error = self.fail(operation, &error);
                let is_over = ends_session(error.kind());
                (error, is_over)
            }
            Err(_) => {
                let what = "no answer within the time limit";
                let error = Error::new(ErrorKind::Timeout, operation, what);
                (error.context("server", &self.server), true)
            }
        };
        if is_over {
            connection.close_on_drop();
        }
        Err(error)
    }
}

/// Whether a failure of this kind is the session's and not the statement's.
const fn ends_session(kind: ErrorKind) -> bool {
    use ErrorKind as K;
    matches!(
        kind,
        K::Unavailable | K::ConnectionLost | K::ReadOnly | K::Protocol | K::Configuration
    )
}

/// A connection that goes back to the pool by [`give_back`](Self::give_back) only, and is closed when
/// dropped. The driver does not count a transaction whose BEGIN was cancelled before its answer: the
/// pool would hand out the connection with that transaction open, and later statements would run in it.
pub(crate) struct TransactionConnection {
    connection: PoolConnection<Postgres>,
    ended: bool,
}

impl TransactionConnection {
    /// Begins the transaction. Dropped without a commit, it is rolled back.
    pub(crate) async fn begin(&mut self) -> sqlx::Result<Transaction<'_, Postgres>> {
        self.connection.begin().await
    }

    /// The transaction has ended.
    pub(crate) fn give_back(mut self) {
        self.ended = true;
    }
}

impl Drop for TransactionConnection {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
