//! Servers that accept and never answer.

use std::time::Duration;

use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope};
use tokio::{net::TcpListener, time::Instant};

use crate::support::{configured, numbers};

/// Case amqp-publish-hang, of this kind: every call ends, and nothing counts as sent.
#[tokio::test]
async fn amqp_publish_hang_a_server_that_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let brokers = listener.local_addr().unwrap().to_string();
    for (connect_timeout, publish_timeout) in [(500, 10_000), (10_000, 500)] {
        let publisher = configured(&brokers, |c| {
            c.connect_timeout = Duration::from_millis(connect_timeout);
            c.publish_timeout = Duration::from_millis(publish_timeout);
        });
        let started = Instant::now();
        for outcome in publisher.publish(&numbers("t", 0..3)).await {
            let Outcome::Failed(error) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(error.failure_scope(), Scope::Destination, "{error}");
            // Whose time is over first, the question's or the connection's, is up to librdkafka.
            let kinds = [ErrorKind::Timeout, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
        let closing = Instant::now();
        publisher.close(Duration::from_secs(5)).await;
        drop(publisher);
        assert!(closing.elapsed() < Duration::from_secs(4));
    }
}
