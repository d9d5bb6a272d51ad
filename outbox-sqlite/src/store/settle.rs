//! Writing the verdicts on a batch: all of them or none.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{
    BatchSource, BatchToken, DoneMode, Error, ErrorKind, FailureNote, Result, Settled, Settlement,
    Verdict,
};
use sqlx::{Row as _, SqliteConnection};

use super::{
    flights::{self, Flight},
    keys,
    topics::Scope,
};
use crate::enqueue::millis;

/// Answers of settled batches that are kept for a caller that lost one, in each lane.
const ANSWERS_MAX: i64 = 64;

/// A row of the batch.
struct Flown {
    id: i64,
    key: Option<String>,
    bucket: i64,
    blocks: bool,
}

/// What a settle needs to know.
pub(crate) struct Settle<'a, F> {
    pub(crate) scope: &'a Scope,
    pub(crate) done: DoneMode,
    pub(crate) now: i64,
    pub(crate) fail: F,
}

impl<F: Fn(sqlx::Error) -> Error> Settle<'_, F> {
    /// Settles a batch. A repeated call gets the first one's answer; a batch that was lost is told as
    /// such and changes nothing.
    pub(crate) async fn run(
        &self,
        connection: &mut SqliteConnection,
        token: BatchToken,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        let token = token.0.to_string();
        if let Some(answer) = self.answered(connection, &token).await? {
            return Ok(answer);
        }
        let open = flights::open(connection, self.scope)
            .await
            .map_err(&self.fail)?;
        let Some(index) = open.iter().position(|flight| flight.token == token) else {
            return Ok(Settled {
                lost: settlements.len() as u64,
                ..Settled::default()
            });
        };
        let flight = &open[index];
        let earlier = &open[..index];
        if flight.source == BatchSource::Stream
            && earlier.iter().any(|of| of.source == BatchSource::Stream)
        {
            return Err(broken(
                "a batch of the stream was settled before an earlier one",
            ));
        }
        let rows = self.rows(connection, &token).await?;
        let verdicts = check(flight.source, &rows, settlements)?;
        let (done, other): (Vec<_>, Vec<_>) = rows
            .iter()
            .partition(|row| *verdicts[&row.id] == Verdict::Done);
        self.done(connection, &done).await?;
        let mut returned = false;
        for row in &other {
            let verdict = verdicts[&row.id];
            returned |= *verdict == Verdict::Return;
            self.park(connection, row, verdict).await?;
        }
        self.after(connection, &rows, &verdicts).await?;
        self.close(
            connection,
            flight,
            rows.len(),
            settlements.len() - rows.len(),
        )
        .await?;
        if returned && flight.source == BatchSource::Stream {
            flights::rewind(connection, self.scope)
                .await
                .map_err(&self.fail)?;
        }
        let answer = Settled {
            applied: rows.len() as u64,
            lost: (settlements.len() - rows.len()) as u64,
            unblocked: keys::tell_unblocked(connection, self.scope)
                .await
                .map_err(&self.fail)?,
        };
        if !answer.unblocked.is_empty() {
            sqlx::query("UPDATE outbox_flight SET unblocked = ?2 WHERE id = ?1")
                .bind(flight.id)
                .bind(serde_json::json!(answer.unblocked).to_string())
                .execute(connection)
                .await
                .map_err(&self.fail)?;
        }
        Ok(answer)
    }

    async fn answered(
        &self,
        connection: &mut SqliteConnection,
        token: &str,
    ) -> Result<Option<Settled>> {
        let text = "SELECT applied, lost, unblocked FROM outbox_flight
            WHERE token = ?1 AND applied IS NOT NULL";
        let row = sqlx::query(text)
            .bind(token)
            .fetch_optional(connection)
            .await;
        let Some(row) = row.map_err(&self.fail)? else {
            return Ok(None);
        };
        let number = |index| row.try_get::<i64, _>(index).map_err(&self.fail);
        let unblocked: Option<String> = row.try_get(2).map_err(&self.fail)?;
        Ok(Some(Settled {
            applied: number(0)?.unsigned_abs(),
            lost: number(1)?.unsigned_abs(),
            unblocked: unblocked
                .map(|json| serde_json::from_str(&json))
                .transpose()
                .map_err(|_| broken("an answer that was kept can't be read"))?
                .unwrap_or_default(),
        }))
    }

    /// The rows of the batch by position; fewer than were claimed when SQL removed some.
    async fn rows(&self, connection: &mut SqliteConnection, token: &str) -> Result<Vec<Flown>> {
        // As bytes: a key that is no UTF-8 belongs to a row that is buried as unreadable.
        let text = "SELECT id, CAST(order_key AS BLOB), bucket, blocks FROM outbox_queue
            WHERE status = 'processing' AND lease_token = ?1 ORDER BY id";
        let rows = sqlx::query(text).bind(token).fetch_all(connection).await;
        let rows = rows.map_err(&self.fail)?;
        rows.iter()
            .map(|row| {
                let key: Option<Vec<u8>> = row.try_get_unchecked(1)?;
                Ok(Flown {
                    id: row.try_get(0)?,
                    key: key.and_then(|key| String::from_utf8(key).ok()),
                    bucket: row.try_get(2)?,
                    blocks: row.try_get(3)?,
                })
            })
            .collect::<sqlx::Result<_>>()
            .map_err(&self.fail)
    }

    async fn done(&self, connection: &mut SqliteConnection, rows: &[&Flown]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let text = match self.done {
            DoneMode::Keep => {
                "UPDATE outbox_queue SET status = 'done', parked = NULL, blocks = 0, crashes = 0,
                    lease_token = NULL, processed_at = ?2
                WHERE id IN (SELECT value FROM json_each(?1))"
            }
            DoneMode::Delete => {
                "DELETE FROM outbox_queue WHERE id IN (SELECT value FROM json_each(?1))"
            }
        };
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        sqlx::query(text)
            .bind(serde_json::json!(ids).to_string())
            .bind(self.now)
            .execute(connection)
            .await
            .map_err(&self.fail)?;
        Ok(())
    }

    /// Writes a verdict that leaves the event in the store.
    async fn park(
        &self,
        connection: &mut SqliteConnection,
        row: &Flown,
        verdict: &Verdict,
    ) -> Result<()> {
        let next = Next::of(verdict, row.key.is_some());
        let text = "UPDATE outbox_queue SET
                status = ?2,
                parked = CASE ?2 WHEN 'failed' THEN NULL ELSE coalesce(?3, parked) END,
                blocks = coalesce(?4, blocks),
                route = ?5,
                attempts = max(attempts - ?6, 0),
                crashes = 0,
                lease_token = NULL,
                next_attempt_at = coalesce(?7, next_attempt_at),
                first_failed_at = CASE WHEN ?8 THEN coalesce(first_failed_at, ?9) ELSE first_failed_at END,
                last_failed_at = CASE WHEN ?8 THEN ?9 ELSE last_failed_at END,
                error_kind = CASE WHEN ?8 THEN ?10 ELSE error_kind END,
                error = CASE WHEN ?8 THEN ?11 ELSE error END,
                dead_reason = ?12,
                processed_at = CASE ?2 WHEN 'failed' THEN ?9 END
            WHERE id = ?1";
        sqlx::query(text)
            .bind(row.id)
            .bind(next.status)
            .bind(next.parked)
            .bind(next.blocks)
            .bind(&self.scope.route)
            .bind(i64::from(next.gives_back))
            .bind(next.after_ms.map(|after| self.now.saturating_add(after)))
            .bind(next.note.is_some())
            .bind(self.now)
            .bind(next.note.and_then(|note| note.kind).map(ErrorKind::as_str))
            .bind(next.note.map(|note| &note.text))
            .bind(next.reason)
            .execute(connection)
            .await
            .map_err(&self.fail)?;
        Ok(())
    }

    /// Keys of which something was parked or went: who may go now, and who is to be told.
    async fn after(
        &self,
        connection: &mut SqliteConnection,
        rows: &[Flown],
        verdicts: &BTreeMap<i64, &Verdict>,
    ) -> Result<()> {
        let mut touched = BTreeSet::new();
        for row in rows {
            let Some(key) = &row.key else { continue };
            if row.blocks {
                keys::free(connection, &self.scope.route, key, row.bucket)
                    .await
                    .map_err(&self.fail)?;
            }
            if row.blocks || !matches!(verdicts[&row.id], Verdict::Done | Verdict::Return) {
                touched.insert(key);
            }
        }
        for key in touched {
            keys::promote(connection, &self.scope.route, key)
                .await
                .map_err(&self.fail)?;
        }
        Ok(())
    }

    async fn close(
        &self,
        connection: &mut SqliteConnection,
        flight: &Flight,
        applied: usize,
        lost: usize,
    ) -> Result<()> {
        sqlx::query("UPDATE outbox_flight SET applied = ?2, lost = ?3 WHERE id = ?1")
            .bind(flight.id)
            .bind(i64::try_from(applied).unwrap_or(i64::MAX))
            .bind(i64::try_from(lost).unwrap_or(i64::MAX))
            .execute(&mut *connection)
            .await
            .map_err(&self.fail)?;
        let text =
            "DELETE FROM outbox_flight WHERE route = ?1 AND lane = ?2 AND applied IS NOT NULL
            AND id <= (SELECT id FROM outbox_flight WHERE route = ?1 AND lane = ?2
                ORDER BY id DESC LIMIT 1 OFFSET ?6)";
        let old = self.scope.query(text).bind(ANSWERS_MAX);
        old.execute(connection).await.map_err(&self.fail)?;
        Ok(())
    }
}

/// What a verdict writes; `None`: as it was.
struct Next<'a> {
    status: &'static str,
    parked: Option<&'static str>,
    blocks: Option<bool>,
    after_ms: Option<i64>,
    gives_back: bool,
    note: Option<&'a FailureNote>,
    reason: Option<&'static str>,
}

impl<'a> Next<'a> {
    fn of(verdict: &'a Verdict, has_key: bool) -> Self {
        let stays = Self {
            status: "pending",
            parked: None,
            blocks: None,
            after_ms: None,
            gives_back: true,
            note: None,
            reason: None,
        };
        match verdict {
            Verdict::Done | Verdict::Return => stays,
            Verdict::Hold => Self {
                parked: Some("held"),
                blocks: Some(has_key),
                ..stays
            },
            Verdict::Retry { after, note } | Verdict::Defer { after, note } => Self {
                parked: Some("retry"),
                blocks: Some(has_key),
                after_ms: Some(millis(*after)),
                gives_back: matches!(verdict, Verdict::Defer { .. }),
                note: Some(note),
                ..stays
            },
            Verdict::Dead {
                reason,
                note,
                hold_key,
            } => Self {
                status: "failed",
                blocks: Some(*hold_key && has_key),
                gives_back: false,
                note: Some(note),
                reason: Some(reason.as_str()),
                ..stays
            },
        }
    }
}

/// One verdict for each row of the batch, and returned ones only at the end of the stream's.
fn check<'a>(
    source: BatchSource,
    rows: &[Flown],
    settlements: &'a [Settlement],
) -> Result<BTreeMap<i64, &'a Verdict>> {
    let verdicts: BTreeMap<i64, &Verdict> = settlements
        .iter()
        .map(|settlement| (settlement.position.0, &settlement.verdict))
        .collect();
    if verdicts.len() != settlements.len() || !rows.iter().all(|row| verdicts.contains_key(&row.id))
    {
        return Err(broken(
            "a settle needs one verdict for each event of its batch",
        ));
    }
    let mut returned = false;
    for verdict in verdicts.values() {
        if returned && **verdict != Verdict::Return && source == BatchSource::Stream {
            return Err(broken(
                "everything behind a returned event must be returned",
            ));
        }
        returned |= **verdict == Verdict::Return;
    }
    Ok(verdicts)
}

fn broken(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, "settle", what)
}
