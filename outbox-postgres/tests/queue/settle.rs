use std::time::Duration;

use outbox_core::{DeadReason, ErrorKind, FailureNote, RetryPolicy, Settlement, Verdict};
use outbox_postgres::DoneMode;
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::{all, lane, limit, wait, with_database};

fn note() -> FailureNote {
    FailureNote::new(Some(ErrorKind::Refused), "no")
}

fn dead() -> Verdict {
    Verdict::Dead {
        reason: DeadReason::Rejected,
        note: note(),
        hold_key: false,
    }
}

#[tokio::test]
async fn published_but_mark_failed_one_bad_event_is_settled_apart() {
    for mode in [DoneMode::Keep, DoneMode::Delete] {
        with_database(async |db| {
            let queue = db.queue_with(|c| c.done = mode).await;
            db.fill(5).await;
            let lane = lane(&queue, "w").await;
            let batch = lane.claim(limit(10)).await.unwrap();
            let verdicts = [
                Verdict::Done,
                Verdict::Retry { after: Duration::from_secs(60), note: note() },
                Verdict::Defer { after: Duration::from_secs(60), note: note() },
                Verdict::Return,
                dead(),
            ];
            let settlements: Vec<_> = batch
                .events
                .iter()
                .zip(verdicts)
                .map(|(event, verdict)| Settlement { position: event.position, verdict })
                .collect();
            let settled = lane.settle(batch.token, &settlements).await.unwrap();
            assert_eq!((settled.applied, settled.lost), (5, 0));
            let rows = sqlx::query(
                "SELECT id, status, attempts, error_kind, dead_reason, first_failed_at IS NOT NULL AS failed,
                    round(extract(epoch FROM next_attempt_at - clock_timestamp()))::int AS due,
                    lease_token IS NULL AND lease_owner IS NULL AND lease_until IS NULL AS free,
                    processed_at IS NOT NULL AS processed
                 FROM outbox.queue ORDER BY id",
            )
            .fetch_all(&db.pool)
            .await
            .unwrap();
            let read: Vec<_> = rows
                .iter()
                .map(|row| {
                    assert!(row.get::<bool, _>("free"));
                    let due: i32 = row.get("due");
                    (
                        row.get::<i64, _>("id"),
                        row.get::<&str, _>("status"),
                        row.get::<i32, _>("attempts"),
                        row.get::<Option<&str>, _>("error_kind"),
                        row.get::<Option<&str>, _>("dead_reason"),
                        row.get::<bool, _>("failed"),
                        (55..=60).contains(&due),
                        row.get::<bool, _>("processed"),
                    )
                })
                .collect();
            let expected = [
                (1, "done", 1, None, None, false, false, true),
                (2, "pending", 1, Some("refused"), None, true, true, false),
                (3, "pending", 0, Some("refused"), None, true, true, false),
                (4, "pending", 0, None, None, false, false, false),
                (5, "failed", 1, Some("refused"), Some("rejected"), true, false, true),
            ];
            let kept = if mode == DoneMode::Keep { &expected[..] } else { &expected[1..] };
            assert_eq!(read, kept, "{mode:?}");
            // The answer was lost, so the engine asks again.
            let again = lane.settle(batch.token, &settlements).await.unwrap();
            assert_eq!((again.applied, again.lost), (0, 5));
            let next = lane.claim(limit(10)).await.unwrap();
            assert_eq!(next.events.len(), 1, "only what was returned is due");
            assert_eq!(next.events[0].position.0, 4);
        })
        .await;
    }
}

#[tokio::test]
async fn settling_done_twice_changes_nothing() {
    for mode in [DoneMode::Keep, DoneMode::Delete] {
        with_database(async |db| {
            let queue = db.queue_with(|c| c.done = mode).await;
            db.fill(3).await;
            let lane = lane(&queue, "w").await;
            let batch = lane.claim(limit(10)).await.unwrap();
            let done = all(&batch, &Verdict::Done);
            let first = lane.settle(batch.token, &done).await.unwrap();
            let second = lane.settle(batch.token, &done).await.unwrap();
            assert_eq!(
                (first.applied, first.lost, second.applied, second.lost),
                (3, 0, 0, 3)
            );
            let left = if mode == DoneMode::Keep { 3 } else { 0 };
            assert_eq!(db.number("SELECT count(*) FROM outbox.queue").await, left);
            assert_eq!(db.count("done").await, left);
            assert_eq!(lane.settle(batch.token, &[]).await.unwrap().lost, 0);
        })
        .await;
    }
}

#[tokio::test]
async fn failing_for_counts_from_the_first_failure() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(1).await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(1)).await.unwrap();
        assert_eq!(batch.events[0].failing_for, None);
        let retry = Verdict::Retry {
            after: Duration::ZERO,
            note: note(),
        };
        lane.settle(batch.token, &all(&batch, &retry))
            .await
            .unwrap();
        wait(Duration::from_millis(50)).await;
        let batch = lane.claim(limit(1)).await.unwrap();
        let failing = batch.events[0].failing_for.unwrap();
        assert!(
            failing >= Duration::from_millis(50) && failing < Duration::from_secs(5),
            "{failing:?}"
        );
        assert_eq!(batch.events[0].attempts, 2);
        lane.settle(batch.token, &all(&batch, &retry))
            .await
            .unwrap();
        // Never negative, never overflowing, whatever SQL wrote.
        for (value, expected) in [
            ("infinity", Duration::ZERO),
            ("-infinity", Duration::from_micros(i64::MAX as u64)),
        ] {
            db.sql(&format!(
                "UPDATE outbox.queue SET first_failed_at = '{value}', next_attempt_at = now()"
            ))
            .await;
            let batch = lane.claim(limit(1)).await.unwrap();
            assert_eq!(batch.events[0].failing_for, Some(expected));
            lane.settle(batch.token, &all(&batch, &Verdict::Return))
                .await
                .unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn backoff_overflow_any_number_of_attempts() {
    with_database(async |db| {
        let queue = db.queue().await;
        let lane = lane(&queue, "w").await;
        let policy = RetryPolicy::default();
        for attempts in [-2_147_483_648_i64, -1, 30, 31, 32, 62, 63, 64, 65, 1000, 2_147_483_646, 2_147_483_647] {
            db.sql("DELETE FROM outbox.queue").await;
            db.fill(1).await;
            db.sql(&format!("UPDATE outbox.queue SET attempts = {attempts}, crashes = {attempts}")).await;
            let batch = lane.claim(limit(1)).await.unwrap();
            let counted = batch.events[0].attempts;
            assert_eq!(i64::from(counted), attempts.clamp(0, 2_147_483_646) + 1);
            let after = policy.backoff(counted, 0.5);
            let verdict = Verdict::Retry { after, note: note() };
            assert_eq!(lane.settle(batch.token, &all(&batch, &verdict)).await.unwrap().applied, 1);
            let seconds = db.number("SELECT extract(epoch FROM next_attempt_at - clock_timestamp())::bigint FROM outbox.queue").await;
            assert!(seconds <= policy.cap.as_secs().try_into().unwrap(), "{seconds}");
            db.sql("UPDATE outbox.queue SET attempts = 2147483647, next_attempt_at = now()").await;
            let batch = lane.claim(limit(1)).await.unwrap();
            let verdict = Verdict::Defer { after: Duration::MAX, note: note() };
            assert_eq!(lane.settle(batch.token, &all(&batch, &verdict)).await.unwrap().applied, 1, "no interval is out of range");
        }
    })
    .await;
}

#[tokio::test]
async fn hold_is_a_defect_here() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(1).await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(1)).await.unwrap();
        let error = lane
            .settle(batch.token, &all(&batch, &Verdict::Hold))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(db.count("processing").await, 1);
    })
    .await;
}

#[tokio::test]
async fn updated_at_moves_whoever_writes() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(1).await;
        let stamp = "SELECT extract(epoch FROM updated_at)::numeric(20, 6)::text FROM outbox.queue";
        let mut last = db.text(stamp).await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(1)).await.unwrap();
        let mut moved = async |what: &str| {
            let now = db.text(stamp).await;
            assert!(now > last, "{what}: {now:?} after {last:?}");
            last = now;
        };
        moved("claim").await;
        lane.settle(batch.token, &all(&batch, &Verdict::Return))
            .await
            .unwrap();
        moved("settle").await;
        sqlx::query(AssertSqlSafe("UPDATE outbox.queue SET topic = 'other'"))
            .execute(&db.pool)
            .await
            .unwrap();
        moved("plain SQL").await;
    })
    .await;
}
