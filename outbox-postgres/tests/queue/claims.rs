use std::{collections::HashSet, sync::Arc, time::Duration};

use outbox_core::{ClaimLimit, Inspect as _, LaneId, TopicSet, Verdict};

use crate::support::{all, lane, lane_of, lanes, limit, positions, wait, with_database};

#[tokio::test(flavor = "multi_thread")]
async fn poller_takes_in_flight_eight_workers_share_nothing() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.pool_size = 10).await;
        db.fill(4000).await;
        let mut workers = Vec::new();
        for number in 0..8 {
            let lane = lane(&queue, &format!("w{number}")).await;
            workers.push(tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let batch = lane.claim(limit(70)).await.unwrap();
                    if batch.is_empty() {
                        return mine;
                    }
                    mine.extend(positions(&batch));
                    let settled = lane
                        .settle(batch.token, &all(&batch, &Verdict::Done))
                        .await
                        .unwrap();
                    assert_eq!(
                        (settled.applied, settled.lost),
                        (batch.events.len() as u64, 0)
                    );
                }
            }));
        }
        let mut seen = HashSet::new();
        for worker in workers {
            for position in worker.await.unwrap() {
                assert!(seen.insert(position), "{position} was claimed twice");
            }
        }
        assert_eq!(seen.len(), 4000);
        assert_eq!(db.count("done").await, 4000);
    })
    .await;
}

#[tokio::test]
async fn poller_takes_in_flight_age_alone_makes_nothing_claimable() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(3).await;
        let (a, b) = (lane(&queue, "a").await, lane(&queue, "b").await);
        assert_eq!(a.claim(limit(10)).await.unwrap().events.len(), 3);
        db.sql("UPDATE outbox.queue SET created_at = now() - interval '1 day', next_attempt_at = '-infinity'").await;
        assert!(b.claim(limit(10)).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn claims_come_by_due_time_and_position() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(5).await;
        db.sql("UPDATE outbox.queue SET next_attempt_at = now() - interval '1 hour' WHERE id IN (2, 4)").await;
        db.sql("UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE id = 3").await;
        let lane = lane(&queue, "w").await;
        let first = lane.claim(limit(3)).await.unwrap();
        assert_eq!(positions(&first).iter().map(|p| p.0).collect::<Vec<_>>(), [2, 4, 1]);
        assert!(first.more);
        let second = lane.claim(limit(3)).await.unwrap();
        assert_eq!(positions(&second).iter().map(|p| p.0).collect::<Vec<_>>(), [5]);
        assert!(!second.more);
        assert!(lane.claim(limit(3)).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn i8_bytes_are_bounded_and_the_first_always_comes() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.sql(
            "INSERT INTO outbox.queue (topic, event_type, payload_bytes)
             SELECT 't', 'T', convert_to(repeat('x', 10000), 'UTF8') FROM generate_series(1, 10)",
        )
        .await;
        // The same once more as JSON, which the server compresses: its size in memory counts.
        db.sql("INSERT INTO outbox.queue (topic, event_type, payload) SELECT 't', 'T', to_jsonb(repeat('x', 9990)) FROM generate_series(1, 10)").await;
        let lane = lane(&queue, "w").await;
        let claim = |bytes| lane.claim(ClaimLimit { events: 100, bytes });
        let tiny = claim(1).await.unwrap();
        assert_eq!((tiny.events.len(), tiny.more), (1, true));
        let some = claim(35_000).await.unwrap();
        assert_eq!((some.events.len(), some.more), (3, true));
        let mixed = claim(89_000).await.unwrap();
        assert_eq!((mixed.events.len(), mixed.more), (8, true));
        let rest = claim(1 << 20).await.unwrap();
        assert_eq!((rest.events.len(), rest.more), (8, false));
        assert_eq!(db.count("processing").await, 20, "what did not fit stayed as it was");
    })
    .await;
}

#[tokio::test]
async fn a_lane_takes_its_routes_topics_only() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.lease = Duration::from_millis(400)).await;
        db.sql(
            "INSERT INTO outbox.queue (topic, event_type) VALUES
             ('orders', 'T'), ('orders.eu', 'T'), ('ordersx', 'T'), ('users', 'T'), ('a_b', 'T'), ('axb', 'T')",
        )
        .await;
        let topics = |batch: &outbox_core::Batch| batch.events.iter().map(|e| e.topic.clone()).collect::<Vec<_>>();
        let a = lane_of(&queue, "a", &["orders", "orders.*", "a_*"]).await;
        let batch = a.claim(limit(10)).await.unwrap();
        assert_eq!(topics(&batch), ["orders", "orders.eu", "a_b"]);
        // Nor does it take over what another route left behind.
        wait(Duration::from_millis(500)).await;
        let b = lane_of(&queue, "b", &["users", "axb"]).await;
        assert_eq!(topics(&b.claim(limit(10)).await.unwrap()), ["users", "axb"]);
        let c = lane_of(&queue, "c", &["orders"]).await;
        let taken = c.claim(limit(10)).await.unwrap();
        assert_eq!((topics(&taken), taken.events[0].crashes), (vec!["orders".to_owned()], 1));
    })
    .await;
}

#[tokio::test]
async fn lanes_are_handed_out_once() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.workers = 3).await;
        let ids = |lanes: Vec<Arc<dyn outbox_core::Lane>>| {
            lanes.iter().map(|l| l.id().0.clone()).collect::<Vec<_>>()
        };
        let all = TopicSet::all();
        assert_eq!(
            ids(lanes(&queue, "w", &all, &[]).await),
            ["w/0", "w/1", "w/2"]
        );
        let held = [LaneId("w/0".to_owned()), LaneId("w/2".to_owned())];
        assert_eq!(ids(lanes(&queue, "w", &all, &held).await), ["w/1"]);
    })
    .await;
}

#[tokio::test]
async fn row_lock_during_send_no_transaction_outlives_a_call() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(10).await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(5)).await.unwrap();
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                    AND application_name = 'outbox' AND state <> 'idle'";
        // The driver says good-bye to a connection in the background.
        wait(Duration::from_millis(50)).await;
        assert_eq!(db.number(open).await, 0, "while the broker is asked, no transaction is open");
        // Another session may lock and change what is in flight.
        db.sql("BEGIN; SELECT FROM outbox.queue FOR UPDATE NOWAIT; ROLLBACK").await;
        lane.settle(batch.token, &all(&batch, &Verdict::Done)).await.unwrap();

        // A call that is dropped on its way leaves none either.
        for micros in [0, 50, 200, 500, 1000, 2000, 4000] {
            let call = lane.claim(limit(1));
            let _ = tokio::time::timeout(Duration::from_micros(micros), call).await;
        }
        wait(Duration::from_millis(200)).await;
        assert_eq!(db.number(open).await, 0);
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox'";
        assert!(db.number(sessions).await >= 1, "the sessions are named");
    })
    .await;
}

#[tokio::test]
async fn sessions_have_their_limits() {
    with_database(async |db| {
        let queue = db
            .queue_with(|c| c.statement_timeout = Duration::from_millis(300))
            .await;
        db.fill(1).await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(1)).await.unwrap();
        let mut blocker = db.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM outbox.queue FOR UPDATE")
            .execute(&mut *blocker)
            .await
            .unwrap();
        let error = lane
            .settle(batch.token, &all(&batch, &Verdict::Done))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), outbox_core::ErrorKind::Timeout, "{error}");
        blocker.rollback().await.unwrap();
        assert_eq!(
            lane.settle(batch.token, &all(&batch, &Verdict::Done))
                .await
                .unwrap()
                .applied,
            1
        );
    })
    .await;
}

#[tokio::test]
async fn a_serializable_default_does_not_reach_us() {
    with_database(async |db| {
        db.sql(&format!(
            "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'",
            db.name
        ))
        .await;
        let queue = db.queue().await;
        db.fill(200).await;
        let (a, b) = (lane(&queue, "a").await, lane(&queue, "b").await);
        for _ in 0..10 {
            let (x, y) = tokio::join!(a.claim(limit(10)), b.claim(limit(10)));
            let (x, y) = (x.unwrap(), y.unwrap());
            let (sx, sy) = (all(&x, &Verdict::Done), all(&y, &Verdict::Done));
            let (x, y) = tokio::join!(a.settle(x.token, &sx), b.settle(y.token, &sy));
            assert_eq!((x.unwrap().lost, y.unwrap().lost), (0, 0));
        }
        assert_eq!(db.count("done").await, 200);
    })
    .await;
}

#[tokio::test]
async fn inspect_counts_up_to_its_bound() {
    with_database(async |db| {
        let queue = db.queue().await;
        assert_eq!(
            queue.inspect(10).await.unwrap(),
            outbox_core::Inspection::default()
        );
        db.fill(30).await;
        db.sql("UPDATE outbox.queue SET next_attempt_at = now() + interval '1 day' WHERE id <= 3")
            .await;
        db.sql("UPDATE outbox.queue SET status = 'failed' WHERE id IN (4, 5)")
            .await;
        db.sql("UPDATE outbox.queue SET next_attempt_at = now() - interval '1 hour' WHERE id > 20")
            .await;
        let lane = lane(&queue, "w").await;
        lane.claim(limit(4)).await.unwrap();
        let state = queue.inspect(10).await.unwrap();
        let counts = |c: outbox_core::BoundedCount| (c.value, c.at_least);
        assert_eq!(counts(state.pending), (10, true));
        assert_eq!(counts(state.scheduled), (3, false));
        assert_eq!(counts(state.in_flight), (4, false));
        assert_eq!(counts(state.dead), (2, false));
        assert!(
            state.oldest_pending >= Duration::from_secs(3600)
                && state.oldest_pending < Duration::from_secs(3700)
        );
        assert_eq!(state.lanes.len(), 1);
        assert_eq!(
            (
                state.lanes[0].lane.0.as_str(),
                state.lanes[0].owner.as_deref()
            ),
            ("w/0", Some("w"))
        );
        assert_eq!(counts(state.lanes[0].in_flight), (4, false));
        assert!(state.lanes[0].lease_left > Duration::from_secs(20));
        db.sql("UPDATE outbox.queue SET next_attempt_at = '-infinity' WHERE status = 'pending'")
            .await;
        assert_eq!(
            queue.inspect(10).await.unwrap().oldest_pending,
            Duration::MAX
        );
    })
    .await;
}

#[tokio::test]
async fn late_commits_behind_the_mark_are_found() {
    with_database(async |db| {
        let queue = db.queue().await;
        let lane = lane(&queue, "w").await;
        let insert = "INSERT INTO outbox.queue (topic, event_type, next_attempt_at) VALUES ('t', 'T', now() - interval '1 hour')";
        // In a backlog, right behind it, and when idle: what came to light late is claimed all the same.
        for size in [2, 10] {
            db.fill(5).await;
            let mut claimed = lane.claim(limit(size)).await.unwrap().events.len();
            db.sql(insert).await;
            loop {
                let batch = lane.claim(limit(size)).await.unwrap();
                if batch.is_empty() {
                    break;
                }
                claimed += batch.events.len();
            }
            assert_eq!(claimed, 6, "nothing due is left when a claim comes back empty");
            db.sql(insert).await;
            let started = std::time::Instant::now();
            while lane.claim(limit(size)).await.unwrap().is_empty() {
                assert!(started.elapsed() < Duration::from_secs(5), "an idle lane passes it by");
                wait(Duration::from_millis(10)).await;
            }
        }
    })
    .await;
}

/// SQL may write any due time, and a backlog may have but one.
#[tokio::test]
async fn a_backlog_due_since_ever_is_claimed_in_parts() {
    with_database(async |db| {
        let queue = db.queue().await;
        for due in ["-infinity", "4713-01-01 00:00:00+00 BC", "epoch"] {
            let lane = lane(&queue, "w").await;
            db.fill(25).await;
            db.sql(&format!(
                "UPDATE outbox.queue SET next_attempt_at = '{due}' WHERE status = 'pending'"
            ))
            .await;
            let mut claimed = 0;
            loop {
                let batch = lane.claim(limit(10)).await.unwrap();
                if batch.is_empty() {
                    break;
                }
                claimed += batch.events.len();
            }
            assert_eq!(claimed, 25, "{due}");
        }
    })
    .await;
}
