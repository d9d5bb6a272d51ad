use std::{collections::HashSet, time::Duration};

use outbox_core::Verdict;

use crate::support::{all, lane, limit, positions, wait, with_database};

const LEASE: Duration = Duration::from_millis(400);
const EXPIRED: Duration = Duration::from_millis(500);

#[tokio::test]
async fn lease_expires_slow_publish_a_late_settle_changes_nothing() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.lease = LEASE).await;
        db.fill(1).await;
        let (slow, other) = (lane(&queue, "slow").await, lane(&queue, "other").await);
        let old = slow.claim(limit(10)).await.unwrap();
        assert!(
            other.claim(limit(10)).await.unwrap().is_empty(),
            "the lease runs"
        );
        wait(EXPIRED).await;
        let new = other.claim(limit(10)).await.unwrap();
        assert_eq!(positions(&new), positions(&old));
        assert_eq!((new.events[0].attempts, new.events[0].crashes), (2, 1));
        assert_eq!(slow.renew(&[old.token]).await.unwrap(), [old.token]);
        for verdict in [Verdict::Done, Verdict::Return] {
            let settled = slow.settle(old.token, &all(&old, &verdict)).await.unwrap();
            assert_eq!((settled.applied, settled.lost), (0, 1));
        }
        slow.release().await.unwrap();
        assert_eq!(db.count("processing").await, 1);
        let settled = other
            .settle(new.token, &all(&new, &Verdict::Done))
            .await
            .unwrap();
        assert_eq!((settled.applied, settled.lost), (1, 0));
        assert_eq!(
            db.number("SELECT crashes::bigint FROM outbox.queue").await,
            0
        );
    })
    .await;
}

#[tokio::test]
async fn lease_expires_slow_publish_a_live_worker_renews() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.lease = LEASE).await;
        db.fill(4).await;
        let (slow, other) = (lane(&queue, "slow").await, lane(&queue, "other").await);
        let one = slow.claim(limit(2)).await.unwrap();
        let two = slow.claim(limit(2)).await.unwrap();
        for _ in 0..4 {
            wait(LEASE / 2).await;
            assert!(
                slow.renew(&[one.token, two.token])
                    .await
                    .unwrap()
                    .is_empty()
            );
            assert!(other.claim(limit(10)).await.unwrap().is_empty());
        }
        assert_eq!(
            slow.settle(one.token, &all(&one, &Verdict::Done))
                .await
                .unwrap()
                .applied,
            2
        );
        assert_eq!(
            slow.renew(&[one.token, two.token]).await.unwrap(),
            [one.token],
            "settled, so no longer held"
        );
    })
    .await;
}

#[tokio::test]
async fn i9_crash_suspects_are_halved_then_alone() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.lease = LEASE).await;
        db.fill(8).await;
        lane(&queue, "dead").await.claim(limit(100)).await.unwrap();
        wait(EXPIRED).await;
        let next = lane(&queue, "next").await;
        let mut sizes = Vec::new();
        let mut seen = HashSet::new();
        let mut batches = Vec::new();
        while seen.len() < 8 {
            let batch = next.claim(limit(100)).await.unwrap();
            assert!(
                batch.more
                    && batch
                        .events
                        .iter()
                        .all(|e| (e.attempts, e.crashes) == (2, 1)),
                "{batch:?}"
            );
            sizes.push(batch.events.len());
            seen.extend(positions(&batch));
            batches.push(batch);
        }
        assert_eq!(sizes, [4, 2, 1, 1]);
        // What is settled is no suspect any more; the others die with this worker too.
        next.settle(batches[1].token, &all(&batches[1], &Verdict::Return))
            .await
            .unwrap();
        assert_eq!(
            db.number("SELECT count(*) FROM outbox.queue WHERE crashes = 0")
                .await,
            2
        );
        wait(EXPIRED).await;
        let third = lane(&queue, "third").await;
        let mut alone = 0;
        loop {
            let batch = third.claim(limit(100)).await.unwrap();
            if batch.events[0].crashes == 0 {
                assert_eq!(batch.events.len(), 2);
                break;
            }
            assert_eq!(
                (
                    batch.events.len(),
                    batch.events[0].crashes,
                    batch.events[0].attempts
                ),
                (1, 2, 3)
            );
            third
                .settle(batch.token, &all(&batch, &Verdict::Done))
                .await
                .unwrap();
            alone += 1;
        }
        assert_eq!(alone, 6);
        assert_eq!(
            db.number("SELECT max(crashes)::bigint FROM outbox.queue")
                .await,
            0
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_holds_lock_many_workers_recover_everything_once() {
    with_database(async |db| {
        let queue = db
            .queue_with(|c| (c.lease, c.pool_size) = (Duration::from_secs(1), 10))
            .await;
        db.fill(400).await;
        for number in 0..4 {
            lane(&queue, &format!("dead{number}"))
                .await
                .claim(limit(100))
                .await
                .unwrap();
        }
        db.sql("UPDATE outbox.queue SET attempts = 10 WHERE id % 7 = 0")
            .await;
        wait(Duration::from_millis(1100)).await;
        let mut workers = Vec::new();
        for number in 0..6 {
            let lane = lane(&queue, &format!("w{number}")).await;
            workers.push(tokio::spawn(async move {
                let mut mine = Vec::new();
                let mut idle = 0;
                while idle < 5 {
                    let batch = lane.claim(limit(100)).await.unwrap();
                    idle += usize::from(batch.is_empty());
                    if batch.is_empty() {
                        wait(Duration::from_millis(60)).await;
                        continue;
                    }
                    mine.extend(positions(&batch));
                    assert_eq!(
                        lane.settle(batch.token, &all(&batch, &Verdict::Done))
                            .await
                            .unwrap()
                            .lost,
                        0
                    );
                }
                mine
            }));
        }
        let mut seen = HashSet::new();
        for worker in workers {
            for position in worker.await.unwrap() {
                assert!(seen.insert(position), "{position} came twice");
            }
        }
        assert_eq!(
            seen.len(),
            400,
            "exhausted ones come too: the relay decides that they are dead"
        );
    })
    .await;
}

#[tokio::test]
async fn shutdown_drops_in_flight_release_gives_all_back_at_once() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(5).await;
        let stopping = lane(&queue, "w").await;
        let done = stopping.claim(limit(1)).await.unwrap();
        stopping.claim(limit(2)).await.unwrap();
        stopping.claim(limit(2)).await.unwrap();
        stopping
            .settle(done.token, &all(&done, &Verdict::Done))
            .await
            .unwrap();
        stopping.release().await.unwrap();
        // A worker of the same name starts again at once.
        let batch = lane(&queue, "w").await.claim(limit(10)).await.unwrap();
        assert_eq!(batch.events.len(), 4);
        assert!(
            batch
                .events
                .iter()
                .all(|e| (e.attempts, e.crashes) == (1, 0))
        );
        stopping.release().await.unwrap();
        assert_eq!(
            db.count("processing").await,
            4,
            "a second release gives nothing back"
        );
    })
    .await;
}

#[tokio::test]
async fn attempts_not_persisted_the_claim_counts_before_the_work() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.lease = LEASE).await;
        db.fill(1).await;
        for attempt in 1..=3 {
            let batch = lane(&queue, "w").await.claim(limit(1)).await.unwrap();
            assert_eq!(
                (batch.events[0].attempts, batch.events[0].crashes),
                (attempt, attempt - 1)
            );
            assert_eq!(
                db.number("SELECT attempts::bigint FROM outbox.queue").await,
                i64::from(attempt)
            );
            wait(EXPIRED).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_without_an_end_is_refused() {
    with_database(async |db| {
        db.queue().await;
        db.fill(1).await;
        for set in [
            "",
            ", lease_token = gen_random_uuid()",
            ", lease_token = gen_random_uuid(), lease_until = 'infinity'",
        ] {
            let text = format!("UPDATE outbox.queue SET status = 'processing'{set}");
            let result = sqlx::query(sqlx::AssertSqlSafe(text))
                .execute(&db.pool)
                .await;
            assert!(result.is_err(), "such a row would be stuck: {set}");
        }
    })
    .await;
}
