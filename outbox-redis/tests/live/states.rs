//! States of a server in which it refuses everything with a code of their own: each is waited for, and
//! what was refused did not land.

use std::time::Duration;

use outbox_core::ErrorKind;
use outbox_redis::RedisPublisher;
use outbox_testkit::{Port, eventually, proxy::FaultProxy, servers::Redis};
use redis::aio::MultiplexedConnection;

use crate::support::{
    connection, entries, first_appearances, numbers, publish_all, publisher, refused, run,
};

/// A topic in the upper half of a cluster's slots.
const UPPER: &str = "foo";

/// A server, a publisher that has used it, and a connection of the test.
async fn start() -> (Redis, RedisPublisher, MultiplexedConnection) {
    let server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    publish_all(&publisher, numbers("t", 0..5)).await;
    let connection = connection(&server.url()).await;
    (server, publisher, connection)
}

/// What was refused is taken now, and is there once.
async fn taken(publisher: &RedisPublisher, server: &Redis, topic: &str, before: usize) {
    publish_all(publisher, numbers(topic, 5..10)).await;
    let stored = entries(&mut connection(&server.url()).await, topic).await;
    assert_eq!(stored.len(), before + 5);
    assert!(first_appearances(&stored).into_iter().eq(5 - before..10));
}

async fn until_told(connection: &mut MultiplexedConnection, question: [&str; 2], answer: &str) {
    let mut last = String::new();
    let told = eventually(Duration::from_secs(40), async || {
        let mut command = redis::cmd(question[0]);
        last = command
            .arg(question[1])
            .query_async(connection)
            .await
            .unwrap();
        last.contains(answer).then_some(())
    });
    assert!(told.await.is_some(), "no {answer} in {last}");
}

#[tokio::test]
async fn redis_readonly_noreplicas_is_waited_for() {
    let (server, publisher, mut connection) = start().await;
    run(&mut connection, "CONFIG SET min-replicas-to-write 1").await;
    refused(&publisher, "t", "NOREPLICAS", ErrorKind::Unavailable).await;
    run(&mut connection, "CONFIG SET min-replicas-to-write 0").await;
    taken(&publisher, &server, "t", 5).await;
}

#[tokio::test]
async fn redis_readonly_busy_is_waited_for() {
    let (server, publisher, mut killer) = start().await;
    run(&mut killer, "CONFIG SET lua-time-limit 50").await;
    let mut busy = connection(&server.url()).await;
    let script = tokio::spawn(async move {
        let mut endless = redis::cmd("EVAL");
        endless.arg("while true do end").arg(0);
        endless.exec_async(&mut busy).await
    });
    let told = eventually(Duration::from_secs(20), async || {
        let ping = redis::cmd("PING").exec_async(&mut killer).await;
        ping.is_err_and(|error| error.code() == Some("BUSY"))
            .then_some(())
    });
    assert!(told.await.is_some(), "the script never ran");
    refused(&publisher, "t", "BUSY", ErrorKind::Unavailable).await;
    run(&mut killer, "SCRIPT KILL").await;
    script.await.unwrap().unwrap_err();
    taken(&publisher, &server, "t", 5).await;
}

/// It can't save its data, and takes no more until it can.
#[tokio::test]
async fn redis_readonly_misconf_is_waited_for() {
    let (server, publisher, mut connection) = start().await;
    let in_the_way = server.log().with_file_name("dump.rdb");
    std::fs::create_dir(&in_the_way).unwrap();
    let mut save = redis::cmd("CONFIG");
    save.arg("SET").arg("save").arg("3600 100000");
    save.exec_async(&mut connection).await.unwrap();
    run(&mut connection, "BGSAVE").await;
    let persistence = ["INFO", "persistence"];
    until_told(&mut connection, persistence, "rdb_last_bgsave_status:err").await;
    refused(&publisher, "t", "MISCONF", ErrorKind::OutOfSpace).await;
    std::fs::remove_dir(&in_the_way).unwrap();
    run(&mut connection, "BGSAVE").await;
    until_told(&mut connection, persistence, "rdb_last_bgsave_status:ok").await;
    taken(&publisher, &server, "t", 5).await;
}

async fn node() -> (Redis, MultiplexedConnection, Port) {
    let bus = Port::take().unwrap();
    let arguments = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus.to_string(),
    ];
    let server = Redis::start_with(&arguments).unwrap();
    let connection = connection(&server.url()).await;
    (server, connection, bus)
}

#[tokio::test]
async fn redis_readonly_clusterdown_is_waited_for() {
    let (server, mut connection, _bus) = node().await;
    let publisher = publisher(&server.url());
    refused(&publisher, UPPER, "CLUSTERDOWN", ErrorKind::Unavailable).await;
    run(&mut connection, "CLUSTER ADDSLOTSRANGE 0 16383").await;
    taken(&publisher, &server, UPPER, 0).await;
}

/// The slot is another node's, and the name comes to lead there.
#[tokio::test]
async fn redis_readonly_moved_is_left() {
    let (lower, mut at_lower, _lower_bus) = node().await;
    let (upper, mut at_upper, bus) = node().await;
    run(&mut at_lower, "CLUSTER ADDSLOTSRANGE 0 8191").await;
    run(&mut at_upper, "CLUSTER ADDSLOTSRANGE 8192 16383").await;
    run(&mut at_upper, "CLUSTER BUMPEPOCH").await;
    let port = upper.address().port();
    run(
        &mut at_lower,
        &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"),
    )
    .await;
    for connection in [&mut at_lower, &mut at_upper] {
        until_told(connection, ["CLUSTER", "INFO"], "cluster_state:ok").await;
    }
    let name = FaultProxy::start(lower.address()).await.unwrap();
    let publisher = publisher(&format!("redis://{}", name.address()));
    refused(&publisher, UPPER, "MOVED", ErrorKind::Unavailable).await;
    name.retarget(upper.address());
    taken(&publisher, &upper, UPPER, 0).await;
}
