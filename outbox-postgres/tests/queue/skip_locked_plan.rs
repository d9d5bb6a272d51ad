//! What every statement costs beside millions of rows that are not its business, whatever the
//! planner knows of them.

use std::time::Duration;

use futures::future::join_all;
use outbox_core::{
    DeadFilter, DeadLetters as _, DeadReason, ErrorKind, FailureNote, Inspect as _, Lane, Page,
    Position, Verdict,
};
use outbox_postgres::{PgConfig, PgQueue};

use crate::{
    explained::{ExplainingServer, Ran},
    support::{Db, all, lane, lane_of, limit, positions},
};

const DONE: u64 = 4_900_000;
const SCHEDULED: u64 = 90_000;
const BLOCKED: u64 = 9_000;
const READY: u64 = 1_000;
const DEAD: u64 = 2_000;

/// Rows of a claim: the relay's default.
const BATCH: u64 = 500;
/// What `status` counts to.
const COUNT_MAX: u32 = 10_000;

/// Pages that a statement may look at: it finds each row of a batch by its key and writes it with
/// its index entries. The table has several times as many.
const BUFFERS: u64 = 20_000;

/// The table of the case. What is done was inserted first, as in life.
async fn fill(db: &Db) {
    // Nothing here outlives the server, and the log of it all would take longer than the rows.
    db.sql("ALTER TABLE outbox.queue SET UNLOGGED").await;
    let done = format!(
        "INSERT INTO outbox.queue (event_id, topic, event_type, status, processed_at)
         SELECT '00000000-0000-0000-0000-000000000001', 'orders', 'T', 'done', now()
         FROM generate_series(1, {})",
        DONE / 2
    );
    tokio::join!(db.sql(&done), db.sql(&done));
    db.sql(&format!(
        "INSERT INTO outbox.queue (topic, event_type, key, payload, next_attempt_at)
         SELECT 'orders', 'T', 'k' || n, '{{\"n\": 1}}', now() + interval '1 day' + n * interval '1 second'
         FROM generate_series(1, {SCHEDULED}) n;
         INSERT INTO outbox.queue
             (topic, event_type, key, payload, next_attempt_at, attempts, first_failed_at, error_kind, error)
         SELECT 'missing', 'T', 'blocked', '{{\"n\": 1}}', now() + interval '1 hour' + n * interval '1 millisecond',
             3, now(), 'topic_not_found', 'there is no such topic'
         FROM generate_series(1, {BLOCKED}) n;
         INSERT INTO outbox.queue
             (topic, event_type, key, payload, status, dead_reason, error_kind, error, processed_at)
         SELECT 'orders', 'T' || n % 3, 'k' || n, '{{\"n\": 1}}', 'failed', 'rejected', 'too_large', 'it is', now()
         FROM generate_series(1, {DEAD}) n"
    ))
    .await;
    let pages = db
        .number("SELECT pg_relation_size('outbox.queue') / 8192")
        .await;
    assert!(pages > 4 * i64::try_from(BUFFERS).unwrap(), "{pages} pages");
}

/// Frees what is claimed, takes requeued rows away and brings the ready ones up to their number.
async fn refill(db: &Db) {
    db.sql(&format!(
        "UPDATE outbox.queue
         SET status = 'pending', crashes = 0, lease_owner = NULL, lease_token = NULL, lease_until = NULL
         WHERE status = 'processing';
         DELETE FROM outbox.queue WHERE status = 'pending' AND next_attempt_at <= now() AND topic = 'orders';
         INSERT INTO outbox.queue (topic, event_type, key, payload)
         SELECT 'orders.' || n % 4, 'T', 'k' || n, '{{\"n\": 1}}'
         FROM generate_series(1, {READY} - (
             SELECT count(*) FROM outbox.queue WHERE status = 'pending' AND next_attempt_at <= now())) n"
    ))
    .await;
}

/// Statements come by indexes only, these among them, and no part of one looks at more rows, sorts
/// more rows or touches more pages than its own business needs.
fn assert_bounded(what: &str, ran: &[Ran], indexes: &[&str], rows: u64) {
    let scans: Vec<_> = ran.iter().flat_map(Ran::scans).collect();
    for scan in &scans {
        let by_index = matches!(scan.node.as_str(), "Index Scan" | "Index Only Scan");
        assert!(
            by_index && scan.rows <= rows,
            "{what}: {scan:?}, allowed {rows}: {ran:#?}"
        );
    }
    for index in indexes {
        let used = scans
            .iter()
            .any(|scan| scan.index.as_deref() == Some(index));
        assert!(used, "{what}: {index} is not used: {ran:#?}");
    }
    for ran in ran {
        let (sorted, buffers) = (ran.sorted(), ran.buffers());
        assert!(
            sorted <= rows && buffers <= BUFFERS,
            "{what}: {sorted} rows sorted, {buffers} buffers: {ran:#?}"
        );
    }
}

const CLAIM: &[&str] = &["queue_pending", "queue_pkey"];
const TAKEOVER: &[&str] = &["queue_processing", "queue_pkey"];
const BY_ID: &[&str] = &["queue_pkey"];

fn events(count: u64) -> outbox_core::ClaimLimit {
    limit(usize::try_from(count).unwrap())
}

/// A queue whose statements are all prepared by one session.
async fn connect(db: &Db) -> PgQueue {
    PgQueue::connect(PgConfig {
        pool_size: 1,
        ..db.config()
    })
    .await
    .unwrap()
}

/// More executions than the planner makes plans for the values before it tries one for all.
async fn claims_again_and_again(server: &ExplainingServer, when: &str) {
    refill(&server.db).await;
    let queue = connect(&server.db).await;
    let (all_topics, some) = (
        lane(&queue, "often").await,
        lane_of(&queue, "often", &["orders.0", "orders.1*"]).await,
    );
    for n in 0..12 {
        let what = format!("claim {n} {when}");
        let (batch, ran) = server.watch(all_topics.claim(events(20))).await;
        assert_eq!(batch.unwrap().events.len(), 20, "{what}");
        assert_bounded(&what, &ran, CLAIM, 20);
        let (batch, ran) = server.watch(some.claim(events(20))).await;
        assert_eq!(batch.unwrap().events.len(), 20, "{what}");
        assert_bounded(&format!("{what} of some topics"), &ran, CLAIM, READY);
    }
}

async fn lane_statements(server: &ExplainingServer, when: &str) {
    refill(&server.db).await;
    let queue = connect(&server.db).await;
    let worker = lane(&queue, "worker").await;
    let (first, ran) = server.watch(worker.claim(events(BATCH))).await;
    let first = first.unwrap();
    assert_eq!((first.events.len() as u64, first.more), (BATCH, true));
    assert_bounded(&format!("claim {when}"), &ran, CLAIM, BATCH);
    let (second, ran) = server.watch(worker.claim(events(100))).await;
    let second = second.unwrap();
    assert_eq!(second.events.len(), 100);
    assert_bounded(&format!("claim from the mark {when}"), &ran, CLAIM, 100);
    let tokens = [first.token, second.token];
    let (lost, ran) = server.watch(worker.renew(&tokens)).await;
    assert_eq!(lost.unwrap(), []);
    assert_bounded(&format!("renew {when}"), &ran, BY_ID, BATCH + 100);

    let (settled, ran) = server
        .watch(worker.settle(first.token, &all(&first, &Verdict::Done)))
        .await;
    assert_eq!(settled.unwrap().applied, BATCH);
    assert_bounded(&format!("settle as done {when}"), &ran, BY_ID, BATCH);
    let note = || FailureNote::new(Some(ErrorKind::TopicNotFound), "there is no such topic");
    let mut verdicts = all(
        &second,
        &Verdict::Retry {
            after: Duration::from_secs(3_600),
            note: note(),
        },
    );
    verdicts[0].verdict = Verdict::Done;
    verdicts[1].verdict = Verdict::Dead {
        reason: DeadReason::Rejected,
        hold_key: false,
        note: note(),
    };
    let (settled, ran) = server.watch(worker.settle(second.token, &verdicts)).await;
    assert_eq!(settled.unwrap().applied, 100);
    assert_bounded(&format!("settle {when}"), &ran, BY_ID, 100);

    let third = worker.claim(events(BATCH)).await.unwrap();
    assert_eq!(third.events.len(), 400);
    let (released, ran) = server.watch(worker.release()).await;
    released.unwrap();
    assert_bounded(&format!("release {when}"), &ran, BY_ID, 400);
}

/// What two dead workers held is taken over, by lanes of all and of some topics.
async fn takeovers(server: &ExplainingServer, when: &str) {
    refill(&server.db).await;
    let queue = connect(&server.db).await;
    let dying = lane_of(&queue, "dying", &["orders.0"]).await;
    let held = dying.claim(events(200)).await.unwrap();
    assert_eq!(held.events.len(), 200);
    let expire =
        "UPDATE outbox.queue SET lease_until = now() - interval '1 s' WHERE status = 'processing'";
    server.db.sql(expire).await;
    let some = lane_of(&queue, "some", &["orders.0", "x*"]).await;
    let (batch, ran) = server.watch(some.claim(events(BATCH))).await;
    assert_eq!(batch.unwrap().events.len(), 100, "half of the batch");
    assert_bounded(
        &format!("takeover of some topics {when}"),
        &ran,
        TAKEOVER,
        200,
    );
    let every = lane(&queue, "every").await;
    let (batch, ran) = server.watch(every.claim(events(BATCH))).await;
    assert_eq!(batch.unwrap().events.len(), 50, "half of the rest");
    assert_bounded(&format!("takeover {when}"), &ran, TAKEOVER, 100);
    let (batch, ran) = server.watch(every.claim(events(BATCH))).await;
    assert_eq!(batch.unwrap().events.len(), 25, "half of the last");
    assert_bounded(&format!("second takeover {when}"), &ran, TAKEOVER, 50);
}

/// Reading the state costs what is counted at the most, and dead letters cost the dead.
async fn operators(server: &ExplainingServer, when: &str) {
    refill(&server.db).await;
    let queue = connect(&server.db).await;
    let (state, ran) = server.watch(queue.inspect(COUNT_MAX)).await;
    let state = state.unwrap();
    assert_eq!(state.pending.value, READY);
    assert!(state.scheduled.at_least);
    assert_bounded(
        &format!("inspect {when}"),
        &ran,
        &["queue_pending", "queue_processing", "queue_failed"],
        u64::from(COUNT_MAX) + 1,
    );
    let (failing, ran) = server.watch(queue.failing(COUNT_MAX, 10)).await;
    let failing = failing.unwrap();
    let most = failing.topics.first().unwrap();
    assert_eq!(
        (most.topic.as_str(), most.waiting.value),
        ("missing", BLOCKED)
    );
    assert_eq!(most.last_failure.kind, Some(ErrorKind::TopicNotFound));
    assert!(
        failing.more,
        "beside more scheduled ones than are looked at"
    );
    assert_bounded(
        &format!("failing topics {when}"),
        &ran,
        &["queue_pending", "queue_pkey"],
        u64::from(COUNT_MAX) + 1,
    );
    let dead = state.dead.value;
    let page = |limit| Page { after: None, limit };
    let everything = DeadFilter::default();
    let (listed, ran) = server.watch(queue.list(&everything, page(50))).await;
    let listed = listed.unwrap();
    assert_eq!(listed.len(), 50);
    assert_bounded(&format!("dead list {when}"), &ran, &["queue_failed"], 50);
    let (one, ran) = server.watch(queue.get(listed[7].event_id)).await;
    assert!(one.unwrap().is_some());
    assert_bounded(
        &format!("dead show {when}"),
        &ran,
        &["queue_failed_event"],
        1,
    );
    let filter = DeadFilter {
        topic: Some("orders".into()),
        event_type: Some("T1".into()),
        error_kind: Some(ErrorKind::TooLarge),
        dead_for: Some(Duration::ZERO),
        ..everything
    };
    let (count, ran) = server.watch(queue.count(&filter)).await;
    assert!(count.unwrap() > 100);
    assert_bounded(&format!("dead count {when}"), &ran, &["queue_failed"], dead);
    let indexes = ["queue_failed", "queue_pkey"];
    let (requeued, ran) = server.watch(queue.requeue(&filter, 10)).await;
    assert_eq!(requeued.unwrap(), 10);
    assert_bounded(&format!("dead requeue {when}"), &ran, &indexes, dead);
    let (discarded, ran) = server.watch(queue.discard(&filter, 10)).await;
    assert_eq!(discarded.unwrap(), 10);
    assert_bounded(&format!("dead discard {when}"), &ran, &indexes, dead);
}

async fn claim_until_empty(lane: &dyn Lane) -> Vec<Position> {
    let mut taken = Vec::new();
    loop {
        let batch = lane.claim(events(50)).await.unwrap();
        if batch.is_empty() {
            return taken;
        }
        taken.extend(positions(&batch));
    }
}

/// Eight relays at once share the ready rows, and none wades through the others' work.
async fn eight_relays(server: &ExplainingServer, when: &str) {
    refill(&server.db).await;
    let mut lanes = Vec::new();
    for n in 0..8 {
        let queue = connect(&server.db).await;
        lanes.push(lane(&queue, &format!("relay-{n}")).await);
    }
    let racing = lanes.iter().map(|lane| claim_until_empty(&**lane));
    let (taken, ran) = server.watch(join_all(racing)).await;
    let mut taken = taken.concat();
    taken.sort_unstable();
    let claimed = taken.len() as u64;
    taken.dedup();
    assert_eq!((claimed, taken.len() as u64), (READY, READY), "{when}");
    assert_bounded(&format!("claims of eight {when}"), &ran, CLAIM, READY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skip_locked_plan() {
    let server = ExplainingServer::start().await;
    server.db.queue().await;
    fill(&server.db).await;
    server.explain_new_sessions().await;
    for (statistics, change) in [
        ("before ANALYZE", ""),
        ("after ANALYZE", "ANALYZE outbox.queue"),
    ] {
        server.db.sql(change).await;
        for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
            let set = format!("ALTER DATABASE postgres SET plan_cache_mode = '{mode}'");
            server.db.sql(&set).await;
            let when = format!("{statistics}, plan_cache_mode = {mode}");
            claims_again_and_again(&server, &when).await;
            lane_statements(&server, &when).await;
            takeovers(&server, &when).await;
            operators(&server, &when).await;
            eight_relays(&server, &when).await;
        }
    }
}
