//! A failover behind one name: the relay leaves the demoted server by itself, and what counts as
//! delivered is what the primary acknowledged; with `replicas_min`, what a replica has too.

use std::{collections::BTreeSet, time::Duration};

use outbox_core::Event;
use outbox_testkit::{
    proxy::{Direction, FaultProxy},
    servers::Redis,
};
use uuid::Uuid;

use crate::support::{Place, Settings, command, copies, follow, numbered, scaled, until};

/// How long the name leads to the demoted server.
const DEMOTED: fn() -> Duration = || scaled(Duration::from_secs(6), Duration::from_secs(30));

/// Two servers behind one name, which leads to `old`. The place reads from `new`.
struct Pair {
    old: Redis,
    new: Redis,
    name: FaultProxy,
    place: Place,
}

impl Pair {
    async fn start() -> Self {
        let (old, new) = (Redis::start().unwrap(), Redis::start().unwrap());
        let name = FaultProxy::start(old.address()).await.unwrap();
        let place = Place::shared_with_redis(&new.url()).await;
        Self {
            old,
            new,
            name,
            place,
        }
    }

    fn settings(&self) -> Settings {
        let url = format!("redis://{}", self.name.address());
        self.place
            .relay()
            .set("routes.default.publisher.url", url)
            .set("routes.default.breaker.cap", "2s")
    }

    /// Makes `new` the primary and `old` its replica, as a manual failover does.
    async fn fail_over(&self) {
        command::<()>(&self.new.url(), "REPLICAOF NO ONE").await;
        follow(&self.old.url(), self.new.address()).await;
    }

    async fn length(&self, server: &Redis, topic: &str) -> usize {
        command(&server.url(), &format!("XLEN {topic}")).await
    }
}

fn ids(events: &[Event]) -> BTreeSet<Uuid> {
    events.iter().map(Event::id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_readonly() {
    const EVENTS: usize = 500;
    let pair = Pair::start().await;
    let place = &pair.place;
    let topic = place.topic("t");
    follow(&pair.new.url(), pair.old.address()).await;
    let mut relay = pair.settings().started().await;
    let before = numbered(&topic, EVENTS);
    place.enqueue(&before).await;
    place.until_count("status = 'done'", EVENTS).await;
    until("a replica with everything", async || {
        pair.length(&pair.new, &topic).await == EVENTS
    })
    .await;

    pair.fail_over().await;
    let after = numbered(&topic, EVENTS);
    place.enqueue(&after).await;
    relay.until_log("READONLY").await;
    let connections = pair.name.connections();
    relay.assert_rests(DEMOTED()).await;
    let connections = pair.name.connections() - connections;
    // A pause is at least half of its length.
    let probes = 4 + DEMOTED().as_secs();
    assert!(
        (1..=probes).contains(&connections),
        "{connections} new connections in {:?}",
        DEMOTED()
    );
    let done = place.count("status = 'done'").await;
    assert_eq!(done, 500, "a replica acknowledges nothing");
    assert_eq!(place.count("attempts > 1").await, 0, "no attempt is burnt");

    pair.name.retarget(pair.new.address());
    place.until_count("status = 'done'", 2 * EVENTS).await;
    assert!(relay.is_running());
    let log = relay.stop().await;
    let answers = log.iter().filter(|line| line.contains("answers again"));
    assert_eq!(answers.count(), 1, "{log:#?}");
    let connected = log.iter().filter(|line| line.contains("connected"));
    assert_eq!(connected.count(), 1, "I8: no line a probe: {log:#?}");
    assert_eq!(
        place
            .count("attempts <> 1 OR crashes <> 0 OR error IS NOT NULL")
            .await,
        0,
        "no attempt is burnt"
    );
    let copies = copies(&place.entries(&topic).await);
    let sent: BTreeSet<Uuid> = copies.keys().copied().collect();
    assert_eq!(sent, &ids(&before) | &ids(&after), "I2");
    assert!(
        copies.values().all(|count| *count == 1),
        "refused is no copy"
    );
}

/// A failover to a replica that had not received what was acknowledged; gives the pair, its topic,
/// and what was written while replication hung.
async fn promoted_behind(settings: impl FnOnce(Settings) -> Settings) -> Behind {
    const EVENTS: usize = 100;
    let pair = Pair::start().await;
    let topic = pair.place.topic("t");
    let replication = FaultProxy::start(pair.old.address()).await.unwrap();
    follow(&pair.new.url(), replication.address()).await;
    let relay = settings(pair.settings()).started().await;
    pair.place.enqueue(&numbered(&topic, EVENTS)).await;
    pair.place.until_count("status = 'done'", EVENTS).await;
    until("a replica with everything", async || {
        pair.length(&pair.new, &topic).await == EVENTS
    })
    .await;

    replication.stall(Direction::ToClient);
    let late = numbered(&topic, EVENTS);
    pair.place.enqueue(&late).await;
    // Not all of it: a relay that needs the replica pauses after the first batch.
    until("some of it on the primary", async || {
        pair.length(&pair.old, &topic).await > EVENTS
    })
    .await;
    Behind {
        pair,
        topic,
        late: ids(&late),
        relay,
        _replication: replication,
    }
}

struct Behind {
    pair: Pair,
    topic: String,
    late: BTreeSet<Uuid>,
    relay: crate::support::Running,
    _replication: FaultProxy,
}

impl Behind {
    async fn fail_over(&self) {
        self.pair.fail_over().await;
        self.pair.name.retarget(self.pair.new.address());
    }

    /// Which of the late events the new primary has.
    async fn arrived(&self) -> BTreeSet<Uuid> {
        let entries = self.pair.place.entries(&self.topic).await;
        let ids: BTreeSet<Uuid> = copies(&entries).into_keys().collect();
        &ids & &self.late
    }
}

/// The window that the documentation names: the primary's word is all that counts, and the failover
/// breaks it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_readonly_loss_window_without_replicas_min() {
    let behind = promoted_behind(|settings| settings).await;
    let place = &behind.pair.place;
    place.until_count("status = 'done'", 200).await;
    behind.fail_over().await;
    place.enqueue(&numbered(&behind.topic, 10)).await;
    place.until_count("status = 'done'", 210).await;
    assert_eq!(behind.arrived().await.len(), 0, "acknowledged and lost");
    behind.relay.stop().await;
}

/// What no replica confirmed is not delivered, and goes to the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_readonly_replicas_min_closes_the_window() {
    let behind = promoted_behind(|settings| {
        settings
            .set("routes.default.publisher.replicas_min", "1")
            .set("routes.default.publisher.publish_timeout", "2s")
    })
    .await;
    let place = &behind.pair.place;
    behind.relay.until_log("too few replicas").await;
    assert_eq!(place.count("status = 'done'").await, 100, "I3");
    behind.fail_over().await;
    place.until_count("status = 'done'", 200).await;
    assert_eq!(behind.arrived().await, behind.late, "I2");
    assert_eq!(place.count("attempts <> 1").await, 0, "no attempt is burnt");
    behind.relay.stop().await;
}
