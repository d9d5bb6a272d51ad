//! What a claim would take: parked events and the stream, by the same rules for looking and taking.

use outbox_core::{BatchSource, ClaimLimit};
use sqlx::{Row as _, SqliteConnection};

use super::topics::{Scope, in_scope, stream_is_past};

/// Rows to be claimed, by position.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) source: BatchSource,
    pub(crate) ids: Vec<i64>,
    /// They were in flight at a crash.
    pub(crate) suspect: bool,
    pub(crate) more: bool,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: i64,
    crashes: i64,
    bytes: usize,
}

/// What is in flight in a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flying {
    pub(crate) any: bool,
    pub(crate) suspect: bool,
}

/// `?6` now, `?7` rows.
macro_rules! stream {
    () => {
        concat!(
            "SELECT id, crashes, bytes FROM outbox_queue INDEXED BY outbox_stream
    WHERE status = 'pending' AND parked IS NULL AND ",
            in_scope!(""),
            " ORDER BY id LIMIT ?7"
        )
    };
}
const STREAM: &str = stream!();

/// Of each key its head, when that is due, or the run of free ones behind no other. Those that were in
/// flight at a crash are a run of their own, so that nothing jumps over one.
macro_rules! parked {
    () => {
        concat!(
    "SELECT id, crashes, bytes FROM outbox_queue AS q INDEXED BY outbox_parked
    WHERE status = 'pending' AND parked IN ('retry', 'free', 'scheduled') AND next_attempt_at <= ?6 AND ",
    in_scope!(""),
    " AND NOT EXISTS (
        SELECT 1 FROM outbox_queue AS p
        WHERE p.blocks = 1 AND p.route = ?1 AND p.order_key = q.order_key AND p.id < q.id
            AND NOT (q.parked = 'free' AND p.parked = 'free' AND p.status = 'pending'
                AND (p.crashes > 0) = (q.crashes > 0)))
        AND (q.parked <> 'scheduled' OR q.order_key IS NULL OR ",
    stream_is_past!(),
    ")
    ORDER BY next_attempt_at, id LIMIT ?7"
)
    };
}
const PARKED: &str = parked!();

/// The same, explained.
#[cfg(test)]
pub(crate) const STREAM_EXPLAINED: &str = concat!("EXPLAIN QUERY PLAN ", stream!());
#[cfg(test)]
pub(crate) const PARKED_EXPLAINED: &str = concat!("EXPLAIN QUERY PLAN ", parked!());

/// What a claim takes next: from both sources in turns, so that neither starves.
pub(crate) async fn select(
    connection: &mut SqliteConnection,
    scope: &Scope,
    now: i64,
    limit: ClaimLimit,
    flying: Flying,
    stream_first: bool,
) -> sqlx::Result<Option<Selected>> {
    if flying.suspect {
        return Ok(None);
    }
    let order = if stream_first {
        [BatchSource::Stream, BatchSource::Parked]
    } else {
        [BatchSource::Parked, BatchSource::Stream]
    };
    for source in order {
        let text = match source {
            BatchSource::Stream => STREAM,
            BatchSource::Parked => PARKED,
        };
        let rows = i64::try_from(limit.events.max(1)).unwrap_or(i64::MAX - 1) + 1;
        let rows = scope.query(text).bind(now).bind(rows);
        let candidates: Vec<Candidate> = rows
            .fetch_all(&mut *connection)
            .await?
            .iter()
            .map(|row| {
                Ok(Candidate {
                    id: row.try_get(0)?,
                    crashes: row.try_get(1)?,
                    bytes: usize::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0),
                })
            })
            .collect::<sqlx::Result<_>>()?;
        let found = match source {
            BatchSource::Stream => from_stream(&candidates, limit, flying.any),
            BatchSource::Parked => from_parked(candidates, limit, flying.any),
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn from_stream(rows: &[Candidate], limit: ClaimLimit, flying: bool) -> Option<Selected> {
    let suspect = rows.first()?.crashes > 0;
    if suspect && flying {
        return None;
    }
    let take = if suspect {
        suspects_taken(rows)
    } else {
        rows.iter().take_while(|row| row.crashes <= 0).count()
    };
    Some(cut(rows, take, limit, BatchSource::Stream, suspect))
}

fn from_parked(mut rows: Vec<Candidate>, limit: ClaimLimit, flying: bool) -> Option<Selected> {
    rows.sort_unstable_by_key(|row| row.id);
    let (suspects, sound): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.crashes > 0);
    if !sound.is_empty() {
        let more = !suspects.is_empty();
        let mut found = cut(&sound, sound.len(), limit, BatchSource::Parked, false);
        found.more |= more;
        return Some(found);
    }
    let take = suspects_taken(&suspects);
    (take > 0 && !flying).then(|| cut(&suspects, take, limit, BatchSource::Parked, true))
}

/// How many of these suspects may fly together: half of those with one crash, and one alone from the
/// second crash on (I9).
fn suspects_taken(rows: &[Candidate]) -> usize {
    match rows.first() {
        None => 0,
        Some(row) if row.crashes == 1 => rows
            .iter()
            .take_while(|row| row.crashes == 1)
            .count()
            .div_ceil(2),
        Some(_) => 1,
    }
}

/// The longest run within the limit; the first row is in whatever its size.
fn cut(
    rows: &[Candidate],
    take: usize,
    limit: ClaimLimit,
    source: BatchSource,
    suspect: bool,
) -> Selected {
    let mut ids = Vec::new();
    let mut bytes = 0usize;
    for row in rows.iter().take(take.min(limit.events.max(1))) {
        bytes = bytes.saturating_add(row.bytes);
        if bytes > limit.bytes && !ids.is_empty() {
            break;
        }
        ids.push(row.id);
    }
    Selected {
        source,
        more: ids.len() < rows.len(),
        ids,
        suspect,
    }
}
