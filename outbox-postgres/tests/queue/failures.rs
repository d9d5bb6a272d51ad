//! What goes wrong between us and the server, by the server's own means.

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Scope, Store as _};
use outbox_postgres::{PgConfig, PgQueue};
use outbox_testkit::servers::Postgres;
use sqlx::postgres::PgPoolOptions;

use crate::support::{Db, lane, limit, wait, with_database};

const PASSWORD: &str = "p@ss:w/ord%21";
const ENCODED: &str = "p%40ss%3Aw%2Ford%2521";

/// The test database's URL for another role.
pub(crate) fn url_of(db: &Db, role: &str, encoded_password: &str) -> String {
    let (scheme, rest) = db.url.split_once("://").unwrap();
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    format!("{scheme}://{role}:{encoded_password}@{rest}")
}

async fn failure(url: String) -> outbox_core::Error {
    let mut config = PgConfig::new(url);
    config.connect_timeout = Duration::from_millis(500);
    let queue = PgQueue::connect(config).await.unwrap();
    let error = queue.check().await.unwrap_err();
    let shown = format!("{error} {error:?} {queue:?}");
    for secret in [PASSWORD, ENCODED, "p@ss", "ord%21", "ord%2521"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert_eq!(error.failure_scope(), Scope::Destination);
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused_by_check_and_claim() {
    let mut server = Postgres::start().unwrap();
    let queue = PgQueue::connect(PgConfig::new(server.url())).await.unwrap();
    queue.migrate().await.unwrap();
    let lane = lane(&queue, "w").await;
    tokio::task::block_in_place(|| server.restart_as_standby()).unwrap();
    let queue = PgQueue::connect(PgConfig::new(server.url())).await.unwrap();
    let refused = queue.check().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    assert!(refused.to_string().contains("standby"), "{refused}");
    // A relay whose primary became a standby: its old connections are gone, later claims are refused.
    let mut claim = lane.claim(limit(1)).await;
    for _ in 0..10 {
        if claim
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::ReadOnly)
        {
            break;
        }
        claim = lane.claim(limit(1)).await;
    }
    let refused = claim.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    assert_eq!(refused.failure_scope(), Scope::Destination);
}

/// A session keeps the default that it began with: one of a read-only hour would refuse claims for as
/// long as it stays in the pool.
#[tokio::test]
async fn sessions_of_a_read_only_time_are_left() {
    with_database(async |db| {
        db.queue().await;
        db.fill(1).await;
        let alter = format!("ALTER DATABASE {}", db.name);
        let set = format!("{alter} SET default_transaction_read_only = on");
        db.sql(&set).await;
        let mut config = db.config();
        config.pool_size = 1;
        let queue = PgQueue::connect(config).await.unwrap();
        let lane = lane(&queue, "w").await;
        let refused = lane.claim(limit(1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        let reset = format!("{alter} RESET default_transaction_read_only");
        db.sql(&reset).await;
        let batch = lane.claim(limit(1)).await.unwrap();
        assert_eq!(batch.events.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn creds_in_log_each_way_to_fail_to_connect() {
    with_database(async |db| {
        let refused = failure(format!("postgres://u:{ENCODED}@127.0.0.1:1/d")).await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("127.0.0.1:1/d"), "{refused}");

        let unknown_host = failure(format!("postgres://u:{ENCODED}@no-such-host.invalid/d")).await;
        assert!(
            matches!(
                unknown_host.kind(),
                ErrorKind::Unavailable | ErrorKind::Timeout
            ),
            "{unknown_host}"
        );

        let no_role = failure(url_of(db, "nobody_of_that_name", ENCODED)).await;
        assert_eq!(no_role.kind(), ErrorKind::Unauthenticated, "{no_role}");

        let mut url = url_of(db, "postgres", ENCODED);
        url = url.replace(&db.name, "no_such_database");
        let no_database = failure(url).await;
        assert_eq!(
            no_database.kind(),
            ErrorKind::Configuration,
            "{no_database}"
        );
        assert!(no_database.to_string().contains("no_such_database"));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let started = Instant::now();
    let error = failure(format!("postgres://u:{ENCODED}@127.0.0.1:{port}/d")).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn all_connections_in_use_is_a_timeout() {
    with_database(async |db| {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_millis(200))
            .connect(&db.url)
            .await
            .unwrap();
        let queue = PgQueue::with_pool(pool.clone(), db.config()).unwrap();
        queue.migrate().await.unwrap();
        let held = pool.acquire().await.unwrap();
        let error = queue.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        drop(held);
        wait(Duration::from_millis(50)).await;
        queue.check().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_killed_session_fails_one_call_only() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.pool_size = 1).await;
        db.fill(1).await;
        let lane = lane(&queue, "w").await;
        assert!(lane.claim(limit(1)).await.unwrap().events.len() == 1);
        wait(Duration::from_millis(50)).await;
        db.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'outbox'",
        )
        .await;
        wait(Duration::from_millis(50)).await;
        let error = lane.claim(limit(1)).await.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::ConnectionLost
            ),
            "{error}"
        );
        wait(Duration::from_millis(50)).await;
        assert!(lane.claim(limit(1)).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn missing_tables_and_read_only_servers_are_named() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.fill(1).await;
        let running = lane(&queue, "w").await;
        db.sql(&format!(
            "ALTER DATABASE {} SET default_transaction_read_only = on",
            db.name
        ))
        .await;
        let mut config = db.config();
        config.pool_size = 1;
        let read_only = lane(&PgQueue::connect(config).await.unwrap(), "r").await;
        let error = read_only.claim(limit(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        db.sql(&format!(
            "ALTER DATABASE {} SET default_transaction_read_only = off",
            db.name
        ))
        .await;
        db.sql("SET default_transaction_read_only = off; DROP SCHEMA outbox CASCADE")
            .await;
        let error = running.claim(limit(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
        assert!(error.to_string().contains(&db.name), "{error}");
    })
    .await;
}

#[tokio::test]
async fn without_a_right_the_whole_route_waits() {
    with_database(async |db| {
        db.queue().await;
        let role = format!("{}_reader", db.name);
        db.sql(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO {role}"
        ))
        .await;
        let queue = PgQueue::connect(PgConfig::new(url_of(db, &role, "x"))).await.unwrap();
        let check = queue.check().await;
        let claim = lane(&queue, "w").await.claim(limit(1)).await;
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        for error in [check.unwrap_err(), claim.unwrap_err()] {
            assert_eq!((error.kind(), error.failure_scope()), (ErrorKind::Unauthorized, Scope::Destination), "{error}");
        }
    })
    .await;
}
