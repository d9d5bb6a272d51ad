//! One relay, three routes to three destinations: what is wrong with one is no matter of the others
//! (I7), at the start and later, and it joins again by itself.

use outbox_testkit::servers::Redis;

use crate::support::{Place, Settings, copies, numbered, read, until};

const EVENTS: usize = 200;

/// A relay with a route to a Redis of its own, one to the place's Redis, and one to standard
/// output, each for one topic.
struct Routes {
    place: Place,
    first: Redis,
}

impl Routes {
    async fn new() -> Self {
        let first = Redis::start().unwrap();
        let place = Place::shared().await;
        Self { place, first }
    }

    fn relay(&self) -> Settings {
        let topics = |name| format!("[{:?}]", format!("{}.*", self.place.topic(name)));
        Settings::relay()
            .set("store.url", self.place.url())
            .set("routes.first.topics", topics("first"))
            .set("routes.first.publisher.url", self.first.url())
            .set("routes.first.publisher.publish_timeout", "2s")
            .set("routes.first.publisher.connect_timeout", "1s")
            .set("routes.first.breaker.cap", "1s")
            .set("routes.second.topics", topics("second"))
            .set("routes.second.publisher.url", self.place.redis_url())
            .set("routes.third.topics", topics("third"))
            .set("routes.third.publisher.kind", "stdout")
    }

    fn topic(&self, route: &str) -> String {
        self.place.topic(&format!("{route}.t"))
    }

    async fn write(&self) {
        for route in ["first", "second", "third"] {
            self.place
                .enqueue(&numbered(&self.topic(route), EVENTS))
                .await;
        }
    }

    async fn until_done(&self, route: &str, events: usize) {
        let done = format!("status = 'done' AND topic = '{}'", self.topic(route));
        self.place.until_count(&done, events).await;
    }

    /// The second and third take what is written, and the first one takes nothing.
    async fn others_flow(&self, written_before: usize) {
        self.write().await;
        for route in ["second", "third"] {
            self.until_done(route, written_before + EVENTS).await;
        }
        self.until_done("first", 0).await;
    }

    /// All that was written to the first one arrives once it can, with no attempt burnt.
    async fn first_joins(&self, events: usize) {
        self.until_done("first", events).await;
        let burnt = "attempts > 1 OR crashes > 0 OR status = 'dead'";
        assert_eq!(self.place.count(burnt).await, 0, "no attempt is burnt");
        let first = read(&self.first.url(), &self.topic("first")).await;
        assert_eq!(copies(&first).len(), events, "I2");
        let second = self.place.entries(&self.topic("second")).await;
        assert_eq!(copies(&second).len(), events, "each topic where it belongs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_starts_with_one_destination_down() {
    let mut routes = Routes::new().await;
    routes.first.kill().unwrap();
    let relay = routes.relay().started().await;
    routes.others_flow(0).await;
    routes.others_flow(EVENTS).await;
    let ready: serde_json::Value = serde_json::from_str(&relay.get("/readyz").await).unwrap();
    let paused = |route: &str| ready["routes"][route]["paused"].as_bool();
    assert_eq!(paused("first"), Some(true), "{ready}");
    assert_eq!(paused("second"), Some(false), "{ready}");
    assert_eq!(
        (&ready["ready"], &ready["started"]),
        (&false.into(), &true.into())
    );
    routes.first.restart().unwrap();
    routes.first_joins(2 * EVENTS).await;
    until("readiness", async || {
        relay.get("/readyz").await.contains("\"ready\":true")
    })
    .await;
    let log = relay.stop().await;
    let told = |text: &str| log.iter().filter(|line| line.contains(text)).count();
    assert_eq!(told("destination answers again"), 1, "{log:#?}");
    let end = log
        .iter()
        .find(|line| line.contains("answers again"))
        .unwrap();
    assert!(
        end.contains("failures=") && end.contains("down_ms="),
        "{end}"
    );
    assert!((1..=4).contains(&told("destination failed")), "{log:#?}");
}

/// It accepts connections and says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_starts_with_one_destination_that_hangs() {
    let routes = Routes::new().await;
    routes.first.pause().unwrap();
    let relay = routes.relay().start();
    routes.others_flow(0).await;
    relay.until_log("relay started").await;
    routes.others_flow(EVENTS).await;
    routes.first.resume().unwrap();
    routes.first_joins(2 * EVENTS).await;
    relay.stop().await;
}

/// An operator mends it, and nobody has to start the relay again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_starts_with_one_destination_that_refuses_its_password() {
    let mut routes = Routes::new().await;
    routes
        .first
        .restart_unready(&["--requirepass", "another"])
        .unwrap();
    let relay = routes.relay().started().await;
    relay.until_log("destination failed, route paused").await;
    routes.others_flow(0).await;
    assert!(relay.logged("route=\"first\""), "{:#?}", relay.log());
    routes.others_flow(EVENTS).await;
    routes.first.restart_unready(&[]).unwrap();
    routes.first_joins(2 * EVENTS).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_every_destination_refuses_ends_with_the_reason() {
    let routes = Routes::new().await;
    let place = &routes.place;
    let refusing = Redis::start_with(&["--requirepass", "another"]).unwrap();
    let mut relay = Settings::relay()
        .set("store.url", place.url())
        .set("routes.a.topics", "[\"a\"]")
        .set("routes.a.publisher.url", refusing.url())
        .set("routes.b.topics", "[\"b\"]")
        .set("routes.b.publisher.url", refusing.url())
        .start();
    let (code, _) = relay.ended().await;
    let log = relay.log();
    assert_eq!(code, Some(4), "{log:#?}");
    assert!(log.last().unwrap().contains('a'), "{log:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_destination_goes_down_while_the_others_flow() {
    let mut routes = Routes::new().await;
    let relay = routes.relay().started().await;
    routes.write().await;
    for route in ["first", "second", "third"] {
        routes.until_done(route, EVENTS).await;
    }
    routes.first.kill().unwrap();
    for before in [1, 2, 3] {
        routes.write().await;
        for route in ["second", "third"] {
            routes.until_done(route, (before + 1) * EVENTS).await;
        }
    }
    routes.until_done("first", EVENTS).await;
    routes.first.restart().unwrap();
    routes.first_joins(4 * EVENTS).await;
    let log = relay.stop().await;
    let failures = log.iter().filter(|line| line.contains("WARN")).count();
    assert!(failures <= 4, "{log:#?}");
}
