//! Servers that accept and never answer, and such as are none.

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher, Scope};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

use crate::support::{configured, failed, numbers};

/// Case amqp-publish-hang: every call ends, nothing counts as sent, and no connection is left.
#[tokio::test]
async fn amqp_publish_hang_a_server_that_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://user:p%40ss@{}", listener.local_addr().unwrap());
    for (connect_timeout, publish_timeout) in [(200, 10_000), (10_000, 200)] {
        let publisher = configured(&url, |c| {
            c.connect_timeout = Duration::from_millis(connect_timeout);
            c.publish_timeout = Duration::from_millis(publish_timeout);
        });
        let started = Instant::now();
        let events = numbers("t", 0..3);
        let (outcomes, accepted) = tokio::join!(publisher.publish(&events), listener.accept());
        assert!(started.elapsed() < Duration::from_secs(5));
        for outcome in outcomes {
            let error = failed(&outcome, ErrorKind::Timeout, Scope::Destination);
            assert!(!format!("{error:?}").contains("p@ss"), "{error:?}");
        }
        let (mut stream, _) = accepted.unwrap();
        let mut bytes = vec![];
        let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut bytes)).await;
        ended.expect("the publisher closed it").unwrap();
        assert_eq!(bytes, b"AMQP\0\0\x09\x01");
    }
}

#[tokio::test]
async fn nobody_listens() {
    let publisher = configured("amqp://user:p%40ss@127.0.0.1:1", |_| ());
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        let error = failed(&outcome, ErrorKind::Unavailable, Scope::Destination);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        assert!(!format!("{error:?}").contains("p@ss"), "{error:?}");
    }
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn another_protocol() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            let mut sent = [0; 8];
            stream.read_exact(&mut sent).await.unwrap();
        }
    });
    let publisher = configured(&url, |c| c.connect_timeout = Duration::from_secs(2));
    let events = numbers("t", 0..2);
    let outcomes = timeout(Duration::from_secs(10), publisher.publish(&events)).await;
    let outcomes = outcomes.expect("it ends");
    failed(&outcomes[0], ErrorKind::Protocol, Scope::Destination);
    serving.abort();
}
