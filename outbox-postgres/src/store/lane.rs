//! One of several workers that compete for the queue's rows.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use outbox_core::{
    Batch, BatchSource, BatchToken, ClaimLimit, Lane, LaneId, Result, Settled, Settlement,
    TopicPattern, TopicSet, Verdict,
};
use sqlx::{Postgres, postgres::PgArguments, query::Query};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    Queue,
    marks::{Begin, Marks, Taken},
    row::{self, instant},
    verdicts::Verdicts,
};
use crate::{
    enqueue::micros,
    sql::{Statement, Statements},
};

/// A worker of the queue. Any number may run, in any number of processes; a row is with one at a time.
pub struct PgLane {
    id: LaneId,
    queue: Arc<Queue>,
    statements: Arc<Statements>,
    topics: Option<Topics>,
    state: Mutex<State>,
}

/// The route's topics as the statements take them; `None` in the lane stands for all.
struct Topics {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

struct State {
    /// What is claimed and not settled. Ids, because rows are found by them whatever the planner
    /// knows; a batch is at most what the engine has in flight.
    batches: HashMap<BatchToken, Vec<i64>>,
    marks: Marks,
}

impl PgLane {
    pub(super) fn new(
        id: LaneId,
        queue: Arc<Queue>,
        statements: Arc<Statements>,
        topics: &TopicSet,
    ) -> Self {
        let marks = Marks::new(Instant::now(), queue.config.lease);
        Self {
            id,
            queue,
            statements,
            topics: Topics::new(topics),
            state: Mutex::new(State {
                batches: HashMap::new(),
                marks,
            }),
        }
    }

    /// The state is plain data, whole after every statement on it, so a panic elsewhere can't have
    /// broken it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(
        &self,
        operation: &'static str,
        statement: &Statement,
        limit: ClaimLimit,
        begin: Begin,
    ) -> Result<(Batch, Option<Taken>)> {
        let token = BatchToken(Uuid::new_v4());
        let bytes_max = self.queue.config.event_bytes_max;
        let (due_us, id, ago_us) = match begin {
            Begin::Front => (None, None, None),
            // What `-infinity` stands for has no sum; the statement begins there by itself.
            Begin::At { due_us, id } => ((due_us != i64::MIN).then_some(due_us), Some(id), None),
            Begin::Ago(ago_us) => (None, None, Some(ago_us)),
        };
        let mut query = sqlx::query(statement.text())
            .bind(as_i64(limit.events.max(1)))
            .bind(as_i64(limit.bytes))
            .bind(&self.id.0)
            .bind(token.0)
            .bind(micros(self.queue.config.lease))
            .bind(as_i64(bytes_max))
            .bind(due_us)
            .bind(id)
            .bind(ago_us);
        if let Some(topics) = &self.topics {
            query = query.bind(&topics.exact).bind(&topics.prefixes);
        }
        let rows = self.queue.database.rows(operation, query).await?;
        let cut = rows
            .first()
            .and_then(|first| row::raw_at(first, row::COLUMNS))
            .is_some_and(|value| value == [1]);
        let mut read = rows
            .iter()
            .map(|row| row::read(row, bytes_max))
            .collect::<Result<Vec<_>>>()?;
        // RETURNING promises no order.
        read.sort_unstable_by_key(|row| (row.due_us, row.position));
        let more = cut || read.len() >= limit.events;
        let end = read.last().map(|last| Taken {
            last: (last.due_us, last.position.0),
            more,
        });
        let mut batch = Batch {
            token,
            source: BatchSource::Stream,
            events: Vec::with_capacity(read.len()),
            unreadable: Vec::new(),
            // Without rows there is no age to be told, and the clock is not asked for.
            claimed_at: read
                .iter()
                .map(|row| row.read_at_us)
                .min()
                .and_then(instant)
                .unwrap_or_else(OffsetDateTime::now_utc),
            more,
        };
        if !read.is_empty() {
            let ids = read.iter().map(|row| row.position.0).collect();
            self.state().batches.insert(token, ids);
        }
        for row in read {
            match row.event {
                Ok(event) => batch.events.push(event),
                Err(unreadable) => batch.unreadable.push(unreadable),
            }
        }
        Ok((batch, end))
    }

    /// Ids and tokens of these batches, as far as they are this lane's.
    fn outstanding(&self, tokens: impl IntoIterator<Item = BatchToken>) -> (Vec<i64>, Vec<Uuid>) {
        let state = self.state();
        let mut ids = Vec::new();
        let mut known = Vec::new();
        for token in tokens {
            if let Some(batch) = state.batches.get(&token) {
                ids.extend_from_slice(batch);
                known.push(token.0);
            }
        }
        (ids, known)
    }

    /// Forgets what is settled.
    fn forget(&self, token: BatchToken, settlements: &[Settlement]) {
        let mut state = self.state();
        if let Some(ids) = state.batches.get_mut(&token) {
            let mut settled: Vec<_> = settlements.iter().map(|s| s.position.0).collect();
            settled.sort_unstable();
            ids.retain(|id| settled.binary_search(id).is_err());
            if ids.is_empty() {
                state.batches.remove(&token);
            }
        }
    }

    fn settle_others<'q>(
        &'q self,
        token: BatchToken,
        verdicts: &'q Verdicts,
    ) -> Query<'q, Postgres, PgArguments> {
        let other = &verdicts.other;
        sqlx::query(self.statements.settle.text())
            .bind(&verdicts.done)
            .bind(token.0)
            .bind(&other.ids)
            .bind(&other.verdicts)
            .bind(&other.after_us)
            .bind(&other.reasons)
            .bind(&other.kinds)
            .bind(&other.texts)
    }
}

#[async_trait]
impl Lane for PgLane {
    fn id(&self) -> &LaneId {
        &self.id
    }

    fn lease(&self) -> Duration {
        self.queue.config.lease
    }

    async fn claim(&self, limit: ClaimLimit) -> Result<Batch> {
        let statements = &self.statements;
        let (claim, reclaim) = match self.topics {
            None => (&statements.claim, &statements.reclaim),
            Some(_) => (&statements.claim_topics, &statements.reclaim_topics),
        };
        let started = Instant::now();
        let takeover = self.state().marks.takeover(started);
        if let Some(begin) = takeover {
            let (batch, _) = self.take("take over", reclaim, limit, begin).await?;
            let found = !batch.is_empty();
            self.state().marks.took_over(started, begin, found);
            if found {
                return Ok(batch);
            }
        }
        let started = Instant::now();
        let (mut begin, verify) = {
            let marks = &self.state().marks;
            let begin = marks.claim(started);
            (begin, marks.verify(begin))
        };
        let mut asked = started;
        let (mut batch, mut taken) = self.take("claim", claim, limit, begin).await?;
        if verify && batch.is_empty() {
            (begin, asked) = (Begin::Front, Instant::now());
            (batch, taken) = self.take("claim", claim, limit, begin).await?;
        }
        let took = asked.elapsed();
        self.state().marks.claimed(started, took, begin, taken);
        Ok(batch)
    }

    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled> {
        const OPERATION: &str = "settle";
        if settlements.is_empty() {
            return Ok(Settled::default());
        }
        let verdicts = Verdicts::new(settlements)?;
        let database = &self.queue.database;
        let applied = if verdicts.other.ids.is_empty() {
            let query = sqlx::query(self.statements.done.text())
                .bind(&verdicts.done)
                .bind(token.0);
            database.execute(OPERATION, query).await?
        } else {
            let row = database
                .row(OPERATION, self.settle_others(token, &verdicts))
                .await?;
            let count: i64 =
                sqlx::Row::try_get(&row, 0).map_err(|error| database.fail(OPERATION, &error))?;
            u64::try_from(count).unwrap_or(0)
        };
        self.forget(token, settlements);
        // Retries are due later than anything claimed so far; what is returned keeps its due time.
        if settlements.iter().any(|s| s.verdict == Verdict::Return) {
            self.state().marks.given_back();
        }
        Ok(Settled {
            applied,
            lost: (settlements.len() as u64).saturating_sub(applied),
            unblocked: Vec::new(),
        })
    }

    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>> {
        const OPERATION: &str = "renew";
        let (ids, known) = self.outstanding(tokens.iter().copied());
        let mut renewed = Vec::new();
        if !ids.is_empty() {
            let query = sqlx::query(self.statements.renew.text())
                .bind(&ids)
                .bind(&known)
                .bind(micros(self.queue.config.lease));
            let database = &self.queue.database;
            for row in database.rows(OPERATION, query).await? {
                let token: Uuid = sqlx::Row::try_get(&row, 0)
                    .map_err(|error| database.fail(OPERATION, &error))?;
                renewed.push(BatchToken(token));
            }
        }
        let lost: Vec<_> = tokens
            .iter()
            .copied()
            .filter(|token| !renewed.contains(token))
            .collect();
        let mut state = self.state();
        for token in &lost {
            state.batches.remove(token);
        }
        Ok(lost)
    }

    async fn release(&self) -> Result<()> {
        let tokens: Vec<_> = self.state().batches.keys().copied().collect();
        let (ids, known) = self.outstanding(tokens.iter().copied());
        if !ids.is_empty() {
            let query = sqlx::query(self.statements.release.text())
                .bind(&ids)
                .bind(&known);
            self.queue.database.execute("release", query).await?;
        }
        let mut state = self.state();
        for token in &tokens {
            state.batches.remove(token);
        }
        Ok(())
    }
}

impl Topics {
    fn new(set: &TopicSet) -> Option<Self> {
        let mut topics = Self {
            exact: Vec::new(),
            prefixes: Vec::new(),
        };
        for pattern in set.patterns() {
            match pattern {
                TopicPattern::All => return None,
                TopicPattern::Exact(topic) => topics.exact.push(topic.clone()),
                TopicPattern::Prefix(prefix) => topics.prefixes.push(prefix.clone()),
            }
        }
        Some(topics)
    }
}

/// A bound for the database; what is over its range is no bound.
fn as_i64(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl fmt::Debug for PgLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgLane")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
