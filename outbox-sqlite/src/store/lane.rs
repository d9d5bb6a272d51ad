//! A lane as its owner sees it: every call is fenced by the epoch at which it was acquired.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{
    Batch, BatchSource, BatchToken, ClaimLimit, Error, ErrorKind, Lane, LaneId, Result, Settled,
    Settlement,
};
use sqlx::{Row as _, SqliteConnection};
use uuid::Uuid;

use super::{
    Queue,
    database::clock,
    flights::{self, Flight},
    keys,
    row::{self, event_columns},
    select::{Flying, Selected, select},
    settle::Settle,
    topics::Scope,
};
use crate::enqueue::millis;

/// A lane of a route in the file.
#[derive(Debug)]
pub struct SqliteLane {
    queue: Arc<Queue>,
    scope: Scope,
    id: LaneId,
    epoch: i64,
    stream_next: AtomicBool,
}

/// What a claim finds before it looks for events.
struct Found {
    now: i64,
    lease_until: i64,
    flights: Vec<Flight>,
}

impl Found {
    fn flying(&self) -> Flying {
        Flying {
            any: !self.flights.is_empty(),
            suspect: self.flights.iter().any(|flight| flight.suspect),
        }
    }
}

impl SqliteLane {
    pub(crate) fn new(queue: Arc<Queue>, scope: Scope, epoch: i64) -> Self {
        Self {
            queue,
            id: LaneId(scope.lane.to_string()),
            scope,
            epoch,
            stream_next: AtomicBool::new(false),
        }
    }

    /// The lane's lease, or `LeaseLost` when another has it (I6).
    async fn owned(
        &self,
        operation: &'static str,
        connection: &mut SqliteConnection,
    ) -> Result<i64> {
        let text = "SELECT lease_until FROM outbox_lane
            WHERE route = ?1 AND lane = ?2 AND epoch = ?6 AND owner IS NOT NULL";
        let row = self
            .scope
            .query(text)
            .bind(self.epoch)
            .fetch_optional(connection)
            .await
            .map_err(|error| self.queue.database.fail(operation, &error))?;
        match row {
            Some(row) => row
                .try_get(0)
                .map_err(|error| self.queue.database.fail(operation, &error)),
            None => Err(Error::new(
                ErrorKind::LeaseLost,
                operation,
                "another worker has the lane",
            )
            .context("route", &self.scope.route)
            .context("lane", self.scope.lane)),
        }
    }

    async fn found(&self, connection: &mut SqliteConnection) -> Result<Found> {
        let lease_until = self.owned(CLAIM, connection).await?;
        Ok(Found {
            lease_until,
            now: clock(connection).await.map_err(|error| self.fail(&error))?,
            flights: flights::open(connection, &self.scope)
                .await
                .map_err(|error| self.fail(&error))?,
        })
    }

    fn fail(&self, error: &sqlx::Error) -> Error {
        self.queue.database.fail(CLAIM, error)
    }

    fn lease_ms(&self) -> i64 {
        millis(self.queue.config.lease)
    }

    /// Whether a claim would change anything. An idle lane only reads, beside every writer.
    async fn is_due(
        &self,
        connection: &mut SqliteConnection,
        limit: ClaimLimit,
    ) -> Result<Option<i64>> {
        let found = self.found(connection).await?;
        let now = found.now;
        let stale = found.lease_until.saturating_sub(now) < self.lease_ms() / 2;
        let expired = found.flights.iter().any(|flight| flight.lease_until <= now);
        if stale || expired {
            return Ok(None);
        }
        let due = async {
            let selected =
                select(connection, &self.scope, now, limit, found.flying(), false).await?;
            Ok::<_, sqlx::Error>(
                selected.is_some()
                    || keys::is_scheduled_to_be_held(connection, &self.scope, now).await?,
            )
        };
        let due = due.await.map_err(|error| self.fail(&error))?;
        Ok((!due).then_some(now))
    }

    async fn take(
        &self,
        connection: &mut SqliteConnection,
        selected: Selected,
        now: i64,
    ) -> Result<Batch> {
        let token = BatchToken(Uuid::new_v4());
        let lease_until = now.saturating_add(self.lease_ms());
        let taking = "UPDATE outbox_queue SET status = 'processing', lease_token = ?1, route = ?2,
                attempts = max(0, min(attempts, 2147483646)) + 1
            WHERE id IN (SELECT value FROM json_each(?3))";
        let reading = concat!(
            "SELECT ",
            event_columns!(),
            " FROM outbox_queue WHERE status = 'processing' AND lease_token = ?2 ORDER BY id"
        );
        let bytes_max = self.queue.config.event_bytes_max;
        let rows = async {
            flights::launch(
                connection,
                &self.scope,
                token,
                selected.source,
                selected.suspect,
                lease_until,
            )
            .await?;
            sqlx::query(taking)
                .bind(token.0.to_string())
                .bind(&self.scope.route)
                .bind(serde_json::json!(selected.ids).to_string())
                .execute(&mut *connection)
                .await?;
            sqlx::query(reading)
                .bind(i64::try_from(bytes_max).unwrap_or(i64::MAX))
                .bind(token.0.to_string())
                .fetch_all(&mut *connection)
                .await
        };
        let rows = rows.await.map_err(|error| self.fail(&error))?;
        let mut batch = Batch {
            token,
            source: selected.source,
            ..empty(now)
        };
        batch.more = selected.more;
        for row in &rows {
            match row::read(row, bytes_max, now)? {
                Ok(event) => batch.events.push(event),
                Err(unreadable) => batch.unreadable.push(unreadable),
            }
        }
        Ok(batch)
    }
}

const CLAIM: &str = "claim";

fn empty(now: i64) -> Batch {
    Batch {
        token: BatchToken(Uuid::new_v4()),
        source: BatchSource::default(),
        events: Vec::new(),
        unreadable: Vec::new(),
        claimed_at: row::instant(now).unwrap_or(time::OffsetDateTime::UNIX_EPOCH),
        more: false,
    }
}

#[async_trait]
impl Lane for SqliteLane {
    fn id(&self) -> &LaneId {
        &self.id
    }

    fn lease(&self) -> Duration {
        self.queue.config.lease
    }

    async fn blocked(&self) -> Result<Vec<String>> {
        const OPERATION: &str = "read blocked keys";
        let mut connection = self.queue.database.connection(OPERATION).await?;
        self.owned(OPERATION, &mut connection).await?;
        keys::blocked(&mut connection, &self.scope)
            .await
            .map_err(|error| self.queue.database.fail(OPERATION, &error))
    }

    async fn claim(&self, limit: ClaimLimit) -> Result<Batch> {
        let mut connection = self.queue.database.connection(CLAIM).await?;
        if let Some(now) = self.is_due(&mut connection, limit).await? {
            return Ok(empty(now));
        }
        drop(connection);

        let mut write = self.queue.database.write(CLAIM).await?;
        let tx = &mut *write.tx;
        let now = self.found(tx).await?.now;
        let prepare = async {
            flights::expire(tx, &self.scope, Some(now)).await?;
            keys::hold_scheduled(tx, &self.scope, now).await?;
            let text = "UPDATE outbox_lane SET lease_until = max(lease_until, ?6)
                WHERE route = ?1 AND lane = ?2";
            let lease_until = now.saturating_add(self.lease_ms());
            let renewed = self.scope.query(text).bind(lease_until);
            renewed.execute(&mut *tx).await
        };
        prepare.await.map_err(|error| self.fail(&error))?;
        let flying = self.found(tx).await?.flying();
        let stream_first = self.stream_next.load(Ordering::Relaxed);
        let selected = select(tx, &self.scope, now, limit, flying, stream_first)
            .await
            .map_err(|error| self.fail(&error))?;
        let batch = match selected {
            Some(selected) => self.take(tx, selected, now).await?,
            None => empty(now),
        };
        write.commit().await?;
        let parked = !batch.is_empty() && batch.source == BatchSource::Parked;
        self.stream_next.store(parked, Ordering::Relaxed);
        Ok(batch)
    }

    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled> {
        const OPERATION: &str = "settle";
        let database = &self.queue.database;
        let mut write = database.write(OPERATION).await?;
        let tx = &mut *write.tx;
        self.owned(OPERATION, tx).await?;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let settle = Settle {
            scope: &self.scope,
            done: self.queue.config.done,
            now: clock(tx).await.map_err(fail)?,
            fail,
        };
        let settled = settle.run(tx, token, settlements).await?;
        write.commit().await?;
        Ok(settled)
    }

    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>> {
        const OPERATION: &str = "renew";
        let database = &self.queue.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut write = database.write(OPERATION).await?;
        let tx = &mut *write.tx;
        self.owned(OPERATION, tx).await?;
        let now = clock(tx).await.map_err(fail)?;
        let lease_until = now.saturating_add(self.lease_ms());
        let lane = "UPDATE outbox_lane SET lease_until = max(lease_until, ?6)
            WHERE route = ?1 AND lane = ?2";
        let lane = self.scope.query(lane).bind(lease_until);
        lane.execute(&mut *tx).await.map_err(fail)?;
        let mut lost = Vec::new();
        for token in tokens {
            let text = "UPDATE outbox_flight SET lease_until = ?6
                WHERE route = ?1 AND lane = ?2 AND token = ?7 AND applied IS NULL";
            let flight = self.scope.query(text).bind(lease_until);
            let flight = flight.bind(token.0.to_string()).execute(&mut *tx).await;
            if flight.map_err(fail)?.rows_affected() == 0 {
                lost.push(*token);
            }
        }
        write.commit().await?;
        Ok(lost)
    }

    async fn release(&self) -> Result<()> {
        const OPERATION: &str = "release";
        let database = &self.queue.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut write = database.write(OPERATION).await?;
        let tx = &mut *write.tx;
        // A lane that another worker has is released already.
        match self.owned(OPERATION, tx).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::LeaseLost => return Ok(()),
            Err(error) => return Err(error),
        }
        let given_back = flights::give_back(tx, &self.scope).await;
        given_back.map_err(fail)?;
        // A worker that gave its last lane back leaves its share to the others at once.
        let idle = "DELETE FROM outbox_worker AS w
            WHERE w.route = ?1
                AND w.worker = (SELECT owner FROM outbox_lane WHERE route = ?1 AND lane = ?2)
                AND NOT EXISTS (SELECT 1 FROM outbox_lane AS l
                    WHERE l.route = ?1 AND l.lane <> ?2 AND l.owner = w.worker)";
        let idle = self.scope.query(idle).execute(&mut *tx).await;
        idle.map_err(fail)?;
        let free = "UPDATE outbox_lane SET owner = NULL WHERE route = ?1 AND lane = ?2";
        let free = self.scope.query(free).execute(&mut *tx).await;
        free.map_err(fail)?;
        write.commit().await?;
        self.queue.bell.notify_waiters();
        Ok(())
    }
}
