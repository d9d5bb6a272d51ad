//! Replicas: failover behind one name, and confirmations.

use std::{sync::Arc, time::Duration};

use outbox_core::{ErrorKind, Outcome, Publisher, Scope};
use outbox_testkit::{proxy::FaultProxy, servers::Redis};

use crate::support::{
    all_delivered, configured, connection, entries, failed, first_appearances, numbers, publisher,
    refused, run,
};

async fn replicate(replica: &Redis, primary: &Redis) {
    let mut connection = connection(&replica.url()).await;
    run(
        &mut connection,
        &format!("REPLICAOF 127.0.0.1 {}", primary.address().port()),
    )
    .await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .query_async(&mut connection)
            .await
            .unwrap();
        if info.contains("master_link_status:up") {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{info}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Case redis-readonly: after a failover the old connection leads to a replica; it is left by
/// itself, and nothing is delivered that the primary has not.
#[tokio::test]
async fn redis_readonly_a_demoted_server_is_left() {
    let (old, new) = (Redis::start().unwrap(), Redis::start().unwrap());
    let name = FaultProxy::start(old.address()).await.unwrap();
    let publisher = publisher(&format!("redis://{}", name.address()));
    all_delivered(&publisher.publish(&numbers("t", 0..10)).await);
    replicate(&new, &old).await;
    run(&mut connection(&new.url()).await, "REPLICAOF NO ONE").await;
    replicate(&old, &new).await;

    for outcome in publisher.publish(&numbers("t", 10..20)).await {
        failed(&outcome, ErrorKind::ReadOnly, Scope::Destination);
    }
    let direct = crate::support::publisher(&old.url());
    let error = direct.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    name.retarget(new.address());
    all_delivered(&publisher.publish(&numbers("t", 10..20)).await);
    let stored = entries(&mut connection(&new.url()).await, "t").await;
    assert!(first_appearances(&stored).into_iter().eq(0..20));
    assert_eq!(stored.len(), 20);
}

/// MASTERDOWN: a replica that lost its primary refuses everything.
#[tokio::test]
async fn a_replica_without_its_primary_is_waited_for() {
    let (server, gone) = (Redis::start().unwrap(), Redis::start().unwrap());
    let publisher = publisher(&server.url());
    all_delivered(&publisher.publish(&numbers("t", 0..5)).await);
    let mut connection = connection(&server.url()).await;
    run(&mut connection, "CONFIG SET replica-serve-stale-data no").await;
    // A read-only one would say so first.
    run(&mut connection, "CONFIG SET replica-read-only no").await;
    let port = gone.address().port();
    drop(gone);
    run(&mut connection, &format!("REPLICAOF 127.0.0.1 {port}")).await;
    refused(&publisher, "t", "MASTERDOWN", ErrorKind::Unavailable).await;
    run(&mut connection, "REPLICAOF NO ONE").await;
    all_delivered(&publisher.publish(&numbers("t", 5..10)).await);
    assert_eq!(entries(&mut connection, "t").await.len(), 10);
}

#[tokio::test]
async fn replicas_confirm_or_leave_doubt() {
    let (primary, replica) = (Redis::start().unwrap(), Redis::start().unwrap());
    replicate(&replica, &primary).await;
    let publisher = Arc::new(configured(&primary.url(), |c| {
        c.replicas_min = Some(1);
        c.publish_timeout = Duration::from_secs(2);
        c.pipeline_events_max = 3;
    }));
    all_delivered(&publisher.publish(&numbers("t", 0..5)).await);
    let stored = entries(&mut connection(&replica.url()).await, "t").await;
    assert_eq!(stored.len(), 5, "delivered means that the replica has it");

    replica.pause().unwrap();
    let start = std::time::Instant::now();
    let outcomes = publisher.publish(&numbers("t", 5..10)).await;
    assert!(start.elapsed() < Duration::from_secs(4));
    for outcome in &outcomes[..3] {
        let Outcome::Unknown(error) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(
            (error.kind(), error.failure_scope()),
            (ErrorKind::Unavailable, Scope::Destination)
        );
        assert!(error.to_string().contains("confirmed=0"), "{error}");
    }
    for outcome in &outcomes[3..] {
        failed(outcome, ErrorKind::Unavailable, Scope::Destination);
    }
    replica.resume().unwrap();
    all_delivered(&publisher.publish(&numbers("t", 5..10)).await);
    let stored = entries(&mut connection(&primary.url()).await, "t").await;
    assert!(first_appearances(&stored).into_iter().eq(0..10));
    assert_eq!(stored.len(), 13);
}
