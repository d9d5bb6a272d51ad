//! Case redis-maxlen-trim: nothing is trimmed unless that was asked for, and then a metric shows what
//! a consumer group lost.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use outbox_core::Publisher;
use outbox_redis::RedisPublisher;
use outbox_testkit::{eventually, servers::Redis};
use redis::aio::MultiplexedConnection;

use crate::support::{all_delivered, configured, connection, numbers, publisher, run};

const METRIC: &str = "outbox_redis_trimmed_unread_entries";

/// The metric's value for a stream; `None` when it was never told.
fn lost(metrics: &PrometheusHandle, stream: &str) -> Option<usize> {
    let text = metrics.render();
    let line = format!("{METRIC}{{stream=\"{stream}\"}} ");
    let value = text.lines().find_map(|text| text.strip_prefix(&line))?;
    Some(value.parse().unwrap())
}

async fn until_lost(metrics: &PrometheusHandle, stream: &str, expected: usize) {
    let mut last = None;
    let reached = eventually(Duration::from_secs(40), async || {
        last = lost(metrics, stream);
        (last == Some(expected)).then_some(())
    });
    assert!(reached.await.is_some(), "{last:?}, not {expected}");
}

async fn publish(publisher: &RedisPublisher, stream: &str, count: usize) {
    for part in numbers(stream, 0..count).chunks(500) {
        all_delivered(&publisher.publish(part).await);
    }
}

async fn length(connection: &mut MultiplexedConnection, stream: &str) -> usize {
    let mut command = redis::cmd("XLEN");
    command.arg(stream).query_async(connection).await.unwrap()
}

async fn read(connection: &mut MultiplexedConnection, stream: &str, count: usize) {
    let words = format!("XREADGROUP GROUP g consumer COUNT {count} STREAMS {stream} >");
    run(connection, &words).await;
}

#[tokio::test]
async fn redis_maxlen_trim_nothing_by_default() {
    let server = Redis::start().unwrap();
    publish(&publisher(&server.url()), "t", 5_000).await;
    let mut connection = connection(&server.url()).await;
    assert_eq!(length(&mut connection, "t").await, 5_000);
}

#[tokio::test]
async fn redis_maxlen_trim_shows_what_a_stopped_group_lost() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    // Everything runs on this thread.
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    for stream in ["never", "stopped"] {
        run(
            &mut connection,
            &format!("XGROUP CREATE {stream} g 0 MKSTREAM"),
        )
        .await;
    }
    let publisher = configured(&server.url(), |c| c.stream_entries_max = Some(1_000));
    publish(&publisher, "stopped", 500).await;
    read(&mut connection, "stopped", 10).await;
    publish(&publisher, "stopped", 4_500).await;
    publish(&publisher, "never", 5_000).await;

    // "~" leaves somewhat more than it says.
    let trimmed = 5_000 - length(&mut connection, "never").await;
    assert!(trimmed > 3_500, "{trimmed}");
    until_lost(&metrics, "never", trimmed).await;
    let trimmed = 5_000 - length(&mut connection, "stopped").await;
    until_lost(&metrics, "stopped", trimmed - 10).await;

    for stream in ["never", "stopped"] {
        run(&mut connection, &format!("XTRIM {stream} MAXLEN = 1000")).await;
    }
    until_lost(&metrics, "never", 4_000).await;
    until_lost(&metrics, "stopped", 3_990).await;
    read(&mut connection, "stopped", 1).await;
    until_lost(&metrics, "stopped", 0).await;
}

#[tokio::test]
async fn redis_maxlen_trim_is_no_alarm_for_groups_that_keep_up() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    for stream in ["keeps-up", "last"] {
        run(
            &mut connection,
            &format!("XGROUP CREATE {stream} g 0 MKSTREAM"),
        )
        .await;
    }
    let publisher = configured(&server.url(), |c| c.stream_entries_max = Some(1_000));
    for _ in 0..10 {
        publish(&publisher, "keeps-up", 500).await;
        read(&mut connection, "keeps-up", 500).await;
    }
    publish(&publisher, "keeps-up", 1_000).await;
    run(&mut connection, "XTRIM keeps-up MAXLEN = 1000").await;
    // Streams are asked by name: when this one's loss shows, the other one was asked before.
    publish(&publisher, "last", 10).await;
    run(&mut connection, "XTRIM last MAXLEN = 0").await;
    until_lost(&metrics, "last", 10).await;
    assert_eq!(lost(&metrics, "keeps-up"), Some(0));
}
