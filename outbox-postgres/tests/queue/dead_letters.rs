use std::time::Duration;

use outbox_core::{
    DeadFilter, DeadLetters as _, DeadReason, DeadSummary, ErrorKind, FailureNote, Page,
    Settlement, Verdict,
};
use outbox_postgres::PgQueue;
use uuid::Uuid;

use crate::support::{Db, lane, limit, with_database};

/// Twelve dead letters of every mix, made by the way through a lane.
async fn dead_letters(db: &Db) -> PgQueue {
    let queue = db.queue().await;
    db.sql(
        "INSERT INTO outbox.queue (topic, event_type, key, aggregate_id, payload)
         SELECT 't' || n % 2, 'T' || n % 3, CASE WHEN n % 4 < 2 THEN 'k' || n % 4 END, 'k' || n % 4, to_jsonb(n)
         FROM generate_series(0, 11) n",
    )
    .await;
    let lane = lane(&queue, "w").await;
    let batch = lane.claim(limit(100)).await.unwrap();
    let settlements: Vec<_> = batch
        .events
        .iter()
        .map(|event| Settlement {
            position: event.position,
            verdict: Verdict::Dead {
                reason: if event.position.0 % 2 == 1 {
                    DeadReason::Rejected
                } else {
                    DeadReason::Crashed
                },
                note: FailureNote::new(
                    (event.position.0 <= 6).then_some(ErrorKind::TooLarge),
                    &format!("reason {}", event.position),
                ),
                hold_key: true,
            },
        })
        .collect();
    assert_eq!(
        lane.settle(batch.token, &settlements)
            .await
            .unwrap()
            .applied,
        12
    );
    db.fill(5).await;
    queue
}

async fn found(queue: &PgQueue, filter: &DeadFilter) -> Vec<i64> {
    let page = Page {
        after: None,
        limit: 1000,
    };
    let lines = queue.list(filter, page).await.unwrap();
    assert_eq!(queue.count(filter).await.unwrap(), lines.len() as u64);
    lines.iter().map(|line| line.position.0).collect()
}

#[tokio::test]
async fn filters_combine() {
    with_database(async |db| {
        let queue = dead_letters(db).await;
        let none = DeadFilter::default();
        assert_eq!(found(&queue, &none).await, (1..=12).collect::<Vec<_>>());
        let topic = DeadFilter {
            topic: Some("t1".into()),
            ..none.clone()
        };
        assert_eq!(found(&queue, &topic).await, [2, 4, 6, 8, 10, 12]);
        let key = DeadFilter {
            key: Some("k3".into()),
            ..none.clone()
        };
        assert_eq!(
            found(&queue, &key).await,
            [4, 8, 12],
            "the aggregate id is the key where none is set"
        );
        let kind = DeadFilter {
            error_kind: Some(ErrorKind::TooLarge),
            ..none.clone()
        };
        assert_eq!(found(&queue, &kind).await, [1, 2, 3, 4, 5, 6]);
        let event_type = DeadFilter {
            event_type: Some("T0".into()),
            ..none.clone()
        };
        assert_eq!(found(&queue, &event_type).await, [1, 4, 7, 10]);
        let ids: Vec<Uuid> =
            sqlx::query_scalar("SELECT event_id FROM outbox.queue WHERE id IN (4, 8, 11)")
                .fetch_all(&db.pool)
                .await
                .unwrap();
        let by_id = DeadFilter {
            ids: ids.clone(),
            ..none.clone()
        };
        assert_eq!(found(&queue, &by_id).await, [4, 8, 11]);
        let combined = DeadFilter {
            ids,
            topic: topic.topic,
            key: key.key,
            event_type: event_type.event_type,
            error_kind: kind.error_kind,
            dead_for: Some(Duration::ZERO),
        };
        assert_eq!(found(&queue, &combined).await, [4]);
        let old = DeadFilter {
            dead_for: Some(Duration::from_secs(3600)),
            ..none.clone()
        };
        assert!(found(&queue, &old).await.is_empty());
        db.sql("UPDATE outbox.queue SET processed_at = now() - interval '2 hours' WHERE id = 9")
            .await;
        assert_eq!(found(&queue, &old).await, [9]);
        let ancient = DeadFilter {
            dead_for: Some(Duration::MAX),
            ..none
        };
        assert!(found(&queue, &ancient).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn lists_are_paged_and_lines_are_whole() {
    with_database(async |db| {
        let queue = dead_letters(db).await;
        let filter = DeadFilter {
            topic: Some("t0".into()),
            ..DeadFilter::default()
        };
        let mut lines: Vec<DeadSummary> = Vec::new();
        loop {
            let after = lines.last().map(|line| line.position);
            let page = queue.list(&filter, Page { after, limit: 4 }).await.unwrap();
            assert!(page.len() <= 4);
            if page.is_empty() {
                break;
            }
            lines.extend(page);
        }
        assert_eq!(
            lines.iter().map(|line| line.position.0).collect::<Vec<_>>(),
            [1, 3, 5, 7, 9, 11]
        );
        let line = &lines[1];
        assert_eq!((line.attempts, line.reason), (1, DeadReason::Rejected));
        assert_eq!(
            (line.note.kind, line.note.text.as_str()),
            (Some(ErrorKind::TooLarge), "reason 3")
        );
        assert_eq!(
            (
                line.topic.as_str(),
                line.key.as_deref(),
                line.event_type.as_str()
            ),
            ("t0", Some("k2"), "T2")
        );
        assert!(line.dead_at >= line.created_at);
        let letter = queue.get(line.event_id).await.unwrap().unwrap();
        assert_eq!(&letter.summary, line);
        let event = letter.event.unwrap();
        assert_eq!(
            (event.id, event.payload.as_deref()),
            (line.event_id, Some(&b"2"[..]))
        );
        assert!(queue.get(Uuid::new_v4()).await.unwrap().is_none());
        let alive = sqlx::query_scalar(
            "SELECT event_id FROM outbox.queue WHERE status = 'pending' LIMIT 1",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        assert!(
            queue.get(alive).await.unwrap().is_none(),
            "only the dead are dead letters"
        );
    })
    .await;
}

#[tokio::test]
async fn requeue_starts_anew_oldest_first() {
    with_database(async |db| {
        let queue = dead_letters(db).await;
        db.sql("DELETE FROM outbox.queue WHERE status = 'pending'")
            .await;
        let all = DeadFilter::default();
        // Rows that another operator holds are passed by, not waited for.
        let mut other = db.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM outbox.queue WHERE id = 2 FOR UPDATE")
            .execute(&mut *other)
            .await
            .unwrap();
        assert_eq!(queue.requeue(&all, 5).await.unwrap(), 5);
        other.rollback().await.unwrap();
        let batch = lane(&queue, "w").await.claim(limit(100)).await.unwrap();
        assert_eq!(
            batch
                .events
                .iter()
                .map(|e| e.position.0)
                .collect::<Vec<_>>(),
            [1, 3, 4, 5, 6]
        );
        assert!(
            batch
                .events
                .iter()
                .all(|e| (e.attempts, e.crashes, e.failing_for) == (1, 0, None))
        );
        assert_eq!(queue.requeue(&all, 100).await.unwrap(), 7);
        assert_eq!(queue.requeue(&all, 100).await.unwrap(), 0);
        assert_eq!(db.count("failed").await, 0);
    })
    .await;
}

#[tokio::test]
async fn discard_is_for_ever() {
    with_database(async |db| {
        let queue = dead_letters(db).await;
        let filter = DeadFilter {
            topic: Some("t1".into()),
            ..DeadFilter::default()
        };
        assert_eq!(queue.discard(&filter, 4).await.unwrap(), 4);
        assert_eq!(found(&queue, &filter).await, [10, 12]);
        assert_eq!(queue.discard(&filter, 4).await.unwrap(), 2);
        assert_eq!(db.count("failed").await, 6);
        assert_eq!(db.count("pending").await, 5, "the living are left alone");
    })
    .await;
}

#[tokio::test]
async fn rows_that_sql_set_to_failed_are_shown() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(1).await;
        db.sql("UPDATE outbox.queue SET status = 'failed', error = repeat('x', 5000), error_kind = 'made up', created_at = 'infinity'").await;
        let lines = queue.list(&DeadFilter::default(), Page { after: None, limit: 10 }).await.unwrap();
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].reason, lines[0].note.kind, lines[0].note.text.len()), (DeadReason::Rejected, None, 1000));
        assert_eq!(queue.requeue(&DeadFilter::default(), 10).await.unwrap(), 1);
    })
    .await;
}
