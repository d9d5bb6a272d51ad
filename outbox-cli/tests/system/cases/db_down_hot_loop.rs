//! A database that is down in many ways: the relay rests and says so in few lines, is not ready
//! meanwhile, and goes on by itself with nothing lost, blamed or out of order.

use std::{
    collections::BTreeMap,
    ops::Deref as _,
    time::{Duration, Instant},
};

use outbox_core::Event;
use outbox_testkit::servers::{Postgres, Redis};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{Place, Running, Settings, copies, numbered, scaled, until};

/// How long the database is down.
const DOWN: fn() -> Duration = || scaled(Duration::from_secs(6), Duration::from_secs(300));
/// The longest pause of the relay between two tries.
const BACK_OFF_MAX: Duration = Duration::from_secs(2);
/// A connection that has to end first, and a busy machine.
const SLACK: Duration = Duration::from_secs(8);
/// Keys of each topic; each write has one event of every key.
const KEYS: usize = 20;
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'outbox'";

/// A private database and broker, and what was written. The server is dropped before the place,
/// which would wait for a server that hangs.
struct Scene {
    server: Postgres,
    place: Place,
    _redis: Redis,
    written: Vec<Event>,
}

impl Scene {
    async fn new(settings: &[(&str, &str)]) -> Self {
        let (server, redis) = (
            Postgres::start_with(settings).unwrap(),
            Redis::start().unwrap(),
        );
        let place = Place::on(&server.url(), &redis.url()).await;
        Self {
            server,
            place,
            _redis: redis,
            written: Vec::new(),
        }
    }

    fn topics(&self) -> [String; 2] {
        ["one", "two"].map(|name| self.place.topic(name))
    }

    /// A relay with a route for each topic.
    fn settings(&self) -> Settings {
        let settings = Settings::relay()
            .set("store.url", self.place.url())
            .set("store.connect_timeout", "1s")
            .set("store.statement_timeout", "1s")
            .set("store.lease", "5s")
            .set("relay.store_backoff_max", "2s");
        let routes = ["one", "two"].into_iter().zip(self.topics());
        routes.fold(settings, |settings, (route, topic)| {
            settings
                .set(&format!("routes.{route}.topics"), format!("[{topic:?}]"))
                .set(
                    &format!("routes.{route}.publisher.url"),
                    self.place.redis_url(),
                )
        })
    }

    /// A relay at work, which has delivered what was written before.
    async fn flowing(&mut self, settings: Settings) -> Running {
        let relay = settings.started().await;
        self.write().await;
        self.until_done().await;
        relay
    }

    async fn write(&mut self) {
        for topic in self.topics() {
            let events = numbered(&topic, KEYS);
            self.place.enqueue(&events).await;
            self.written.extend(events);
        }
    }

    async fn until_done(&self) {
        let count = self.written.len();
        self.place.until_count("status = 'done'", count).await;
    }

    /// A session in another database than the relay's.
    async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.server.url()).await.unwrap()
    }

    async fn order(&self, statement: &str) {
        run(&mut self.admin().await, statement).await.unwrap();
    }

    /// The relay goes on within the pause that it may make, and brings what is written now.
    async fn returns(&mut self, relay: Running, undone: Instant) {
        until("readiness", async || is_ready(&relay)).await;
        let took = undone.elapsed();
        assert!(took < BACK_OFF_MAX + SLACK, "ready after {took:?}");
        self.write().await;
        self.until_done().await;
        let log = relay.stop().await;
        let end = log.iter().find(|line| line.contains("store answers again"));
        let end = end.unwrap_or_else(|| panic!("{log:#?}"));
        assert!(
            end.contains("failures=") && end.contains("down_ms="),
            "{end}"
        );
        let burnt = "attempts <> 1 OR crashes <> 0 OR error IS NOT NULL";
        assert_eq!(self.place.count(burnt).await, 0, "no attempt is burnt");
        let most = self.assert_sent().await;
        assert_eq!(most, 1, "nothing was under way, so nothing is sent again");
    }

    /// All is in the streams, each key in the order in which it was written; gives how often the
    /// most frequent event is there.
    async fn assert_sent(&self) -> usize {
        let mut most = 0;
        for topic in self.topics() {
            let entries = self.place.entries(&topic).await;
            most = most.max(copies(&entries).into_values().max().unwrap());
            let mut sent: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
            for entry in &entries {
                let ids = sent.entry(entry.text("key").unwrap().into()).or_default();
                if !ids.contains(&entry.id()) {
                    ids.push(entry.id());
                }
            }
            let mut written: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
            for event in self.written.iter().filter(|event| event.topic() == topic) {
                let key = event.key().unwrap().to_owned();
                written.entry(key).or_default().push(event.id());
            }
            assert_eq!(sent, written, "I2, I5");
        }
        most
    }
}

async fn run(session: &mut PgConnection, statement: &str) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(session)
        .await
        .map(|_| ())
}

fn is_ready(relay: &Running) -> bool {
    match relay.deref().get("/readyz").0 {
        200 => true,
        503 => false,
        other => panic!("{other} of /readyz"),
    }
}

/// The relay tells that the store fails, for this reason, and is not ready.
async fn falls(relay: &Running, reason: &str) {
    relay.until_log("store failed").await;
    relay.until_log(reason).await;
    until("the end of readiness", async || !is_ready(relay)).await;
}

/// It works next to nothing, hardly logs, and is not ready to the end.
async fn rests_unready(relay: &Running) {
    relay.assert_rests(DOWN()).await;
    assert!(!is_ready(relay), "ready: {:#?}", relay.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_stopped() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    scene.server.stop().unwrap();
    falls(&relay, "unavailable").await;
    rests_unready(&relay).await;
    scene.server.restart().unwrap();
    scene.returns(relay, Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_hanging() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    scene.server.pause().unwrap();
    falls(&relay, "timeout").await;
    rests_unready(&relay).await;
    scene.server.resume().unwrap();
    scene.returns(relay, Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_demoted() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    scene.server.restart_as_standby().unwrap();
    falls(&relay, "25006").await;
    rests_unready(&relay).await;
    scene.order("SELECT pg_promote()").await;
    scene.returns(relay, Instant::now()).await;
}

/// The relay leaves sessions that were made while the database was read-only by itself: nobody ends
/// them when it is writable again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_read_only_database() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    let alter = format!("ALTER DATABASE {}", scene.place.database());
    let set = format!("{alter} SET default_transaction_read_only = on");
    scene.order(&set).await;
    // A session that is being made is seen by nobody yet, and may have missed the order.
    for _ in 0..20 {
        scene.order(END_SESSIONS).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    falls(&relay, "25006").await;
    rests_unready(&relay).await;
    let reset = format!("{alter} RESET default_transaction_read_only");
    scene.order(&reset).await;
    scene.returns(relay, Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_too_many_connections() {
    let mut scene = Scene::new(&[("max_connections", "30")]).await;
    let relay = scene.flowing(scene.settings()).await;
    let stop = CancellationToken::new();
    let filler = tokio::spawn(fill(scene.server.url(), stop.clone()));
    falls(&relay, "53300").await;
    rests_unready(&relay).await;
    stop.cancel();
    filler.await.unwrap();
    scene.returns(relay, Instant::now()).await;
}

/// Takes every session that the server has, those of the relay first.
async fn fill(url: String, stop: CancellationToken) {
    let mut held = Vec::new();
    while !stop.is_cancelled() {
        if let Ok(session) = PgConnection::connect(&url).await {
            held.push(session);
            continue;
        }
        run(&mut held[0], END_SESSIONS).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_renamed() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    let name = scene.place.database().to_owned();
    let away = format!("{name}_away");
    rename(&scene, &name, &away).await;
    falls(&relay, "3D000").await;
    rests_unready(&relay).await;
    rename(&scene, &away, &name).await;
    scene.returns(relay, Instant::now()).await;
}

/// A database with sessions can't be renamed, and they come back until it is.
async fn rename(scene: &Scene, from: &str, to: &str) {
    let mut admin = scene.admin().await;
    let end =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{from}'");
    let mut tries = 0;
    loop {
        run(&mut admin, &end).await.unwrap();
        let rename = format!("ALTER DATABASE {from} RENAME TO {to}");
        match run(&mut admin, &rename).await {
            Ok(()) => return,
            Err(error) if tries == 200 => panic!("{error}"),
            Err(_) => tries += 1,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_starting_up() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    scene.server.restart_closed().unwrap();
    falls(&relay, "57P03").await;
    rests_unready(&relay).await;
    scene.server.restart().unwrap();
    scene.returns(relay, Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_wrong_password() {
    let mut scene = Scene::new(&[]).await;
    scene
        .order("CREATE ROLE relay SUPERUSER LOGIN PASSWORD 'right'")
        .await;
    let hba = scene.place.text("SELECT current_setting('hba_file')").await;
    // Not SCRAM: its thousands of hashes, unoptimised as the tests' program is, are no work of the relay.
    let rules = format!(
        "COPY (VALUES ('host all relay 127.0.0.1/32 password'),
            ('host all all 127.0.0.1/32 trust')) TO '{}'",
        hba.unwrap()
    );
    scene.order(&rules).await;
    scene.order("SELECT pg_reload_conf()").await;
    let url = scene.place.url().replace("postgres@", "relay:right@");
    let relay = scene.flowing(scene.settings().set("store.url", url)).await;
    scene.order("ALTER ROLE relay PASSWORD 'changed'").await;
    scene.order(END_SESSIONS).await;
    falls(&relay, "28P01").await;
    scene.write().await;
    rests_unready(&relay).await;
    scene.order("ALTER ROLE relay PASSWORD 'right'").await;
    scene.returns(relay, Instant::now()).await;
}

/// A claim, or its settling, that lives between two looks of the killer works: events may flow.
/// The answer of one that is killed is lost, which looks as if the relay had crashed, so its events
/// are sent again and counted when its lease ends; none is stuck or dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn db_down_hot_loop_sessions_killed() {
    let mut scene = Scene::new(&[]).await;
    let relay = scene.flowing(scene.settings()).await;
    let stop = CancellationToken::new();
    let killer = end_sessions(scene.admin().await, stop.clone());
    relay.until_log("store failed").await;
    scene.write().await;
    relay.assert_rests(DOWN()).await;
    stop.cancel();
    let ended = killer.await.unwrap();
    // A new session after each kill without a pause would be some hundreds a second.
    let most = 20 * (5 + DOWN().as_secs());
    assert!(ended < most, "{ended} sessions in {:?}", DOWN());
    scene.write().await;
    scene.until_done().await;
    until("readiness", async || is_ready(&relay)).await;
    assert_eq!(scene.place.count("attempts > 9").await, 0);
    relay.stop().await;
    scene.assert_sent().await;
}

/// Ends the relay's sessions again and again; gives how many.
fn end_sessions(mut admin: PgConnection, stop: CancellationToken) -> JoinHandle<u64> {
    tokio::spawn(async move {
        let mut killed = 0;
        while !stop.is_cancelled() {
            let rows = sqlx::query(END_SESSIONS).fetch_all(&mut admin).await;
            killed += u64::try_from(rows.unwrap().len()).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        killed
    })
}
