//! The examples do what they say, on real servers.

use std::{
    env,
    process::{Child, Command},
    time::Duration,
};

use outbox_testkit::eventually;
use redis::streams::StreamRangeReply;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask integration`"))
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_order_placed_in_a_transaction_reaches_the_stream() {
    let (admin, redis_url) = (
        variable("OUTBOX_TEST_POSTGRES_URL"),
        variable("OUTBOX_TEST_REDIS_URL"),
    );
    let database = format!("outbox_examples_{}", std::process::id());
    let mut conn = PgConnection::connect(&admin).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}")))
        .execute(&mut conn)
        .await
        .unwrap();
    let (server, _) = admin.rsplit_once('/').unwrap();
    let url = format!("{server}/{database}");

    let relay = Command::new(env!("CARGO_BIN_EXE_embedded_relay"))
        .env("DATABASE_URL", &url)
        .env("REDIS_URL", &redis_url)
        .spawn();
    let relay = Running(relay.unwrap());
    let mut db = PgConnection::connect(&url).await.unwrap();
    let migrated = eventually(Duration::from_secs(30), async || {
        sqlx::raw_sql("SELECT FROM outbox.queue")
            .execute(&mut db)
            .await
            .ok()
    });
    migrated.await.expect("the relay migrates at its start");
    sqlx::raw_sql("CREATE TABLE orders (id text PRIMARY KEY, total int NOT NULL)")
        .execute(&mut db)
        .await
        .unwrap();

    let place = || {
        Command::new(env!("CARGO_BIN_EXE_place_order"))
            .env("DATABASE_URL", &url)
            .output()
            .unwrap()
    };
    assert!(place().status.success());
    let again = place();
    assert!(
        !again.status.success(),
        "the order is there already: rolled back, its event too"
    );

    let mut redis = redis::Client::open(redis_url)
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let pending = async |db: &mut PgConnection| -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM outbox.queue WHERE status <> 'done'")
            .fetch_one(db)
            .await
            .unwrap()
    };
    let drained = eventually(Duration::from_secs(30), async || {
        (pending(&mut db).await == 0).then_some(())
    });
    drained.await.expect("the event is published");
    let (written,): (i64,) = sqlx::query_as("SELECT count(*) FROM outbox.queue")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(written, 1);
    let id: String = sqlx::query_scalar("SELECT event_id::text FROM outbox.queue")
        .fetch_one(&mut db)
        .await
        .unwrap();
    let stream: StreamRangeReply = redis::cmd("XRANGE")
        .arg("orders")
        .arg("-")
        .arg("+")
        .query_async(&mut redis)
        .await
        .unwrap();
    let mine: Vec<_> = stream
        .ids
        .iter()
        .filter(|entry| entry.get::<String>("event-id").as_deref() == Some(&*id))
        .collect();
    assert_eq!(mine.len(), 1);
    assert_eq!(
        mine[0].get::<String>("payload").as_deref(),
        Some(r#"{"id":"4711","total":12}"#)
    );

    drop(relay);
    let _: () = redis::cmd("XDEL")
        .arg("orders")
        .arg(&mine[0].id)
        .query_async(&mut redis)
        .await
        .unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "DROP DATABASE {database} WITH (FORCE)"
    )))
    .execute(&mut conn)
    .await
    .unwrap();
}
