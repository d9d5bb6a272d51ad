//! Servers that are down, slow or overrun, and events that make them so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope};
use tokio::time::{Instant, sleep};

use super::{Arrived, Reply, Server, configured, event, events, hasty};

fn is_bad(arrived: &Arrived) -> bool {
    arrived.decoded("outbox-key").as_deref() == Some("bad")
}

#[track_caller]
fn judged(outcome: &Outcome) -> (&'static str, ErrorKind, Scope) {
    let error = outcome.error().expect("it is no success");
    (outcome.as_str(), error.kind(), error.failure_scope())
}

/// A destination that says "later" is not asked again by the rest of the batch.
#[tokio::test]
async fn i7_a_destination_that_fails_is_left_alone() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let server = Server::start(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Reply::Status(503)
    })
    .await;
    let publisher = configured(&server.url(), |config| config.requests_in_flight_max = 4);
    let outcomes = publisher.publish(&events(100)).await;
    for outcome in &outcomes {
        let expected = ("failed", ErrorKind::Unavailable, Scope::Destination);
        assert_eq!(judged(outcome), expected);
    }
    assert!(
        (1..=4).contains(&asked.load(Ordering::Relaxed)),
        "{asked:?}"
    );
}

#[tokio::test]
async fn i8_requests_in_flight_are_bounded_and_not_one_by_one() {
    let now = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (counted, highest) = (Arc::clone(&now), Arc::clone(&most));
    let router = axum::Router::new().fallback(async move || {
        let here = counted.fetch_add(1, Ordering::SeqCst) + 1;
        highest.fetch_max(here, Ordering::SeqCst);
        sleep(Duration::from_millis(20)).await;
        counted.fetch_sub(1, Ordering::SeqCst);
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let publisher = configured(&format!("http://{address}"), |config| {
        config.requests_in_flight_max = 5;
    });
    let outcomes = publisher.publish(&events(30)).await;
    assert!(outcomes.iter().all(Outcome::is_delivered), "{outcomes:?}");
    assert_eq!(most.load(Ordering::SeqCst), 5);
}

/// What was not sent when the time was over did not land.
#[tokio::test]
async fn at_the_deadline_sent_is_in_doubt_and_unsent_is_not() {
    let server = Server::start(|_| Reply::Hang).await;
    let publisher = configured(&server.url(), |config| {
        config.publish_timeout = Duration::from_millis(300);
        config.requests_in_flight_max = 2;
    });
    let started = Instant::now();
    let outcomes = publisher.publish(&events(5)).await;
    assert!(started.elapsed() < Duration::from_secs(2));
    let names: Vec<_> = outcomes.iter().map(Outcome::as_str).collect();
    assert_eq!(names, ["unknown", "unknown", "failed", "failed", "failed"]);
    for outcome in &outcomes {
        let (_, kind, scope) = judged(outcome);
        assert_eq!((kind, scope), (ErrorKind::Timeout, Scope::Destination));
    }
}

/// An event whose handler never ends, beside others: it burns its own attempt, they pass.
#[tokio::test]
async fn i7_an_event_that_hangs_beside_others_pays_for_itself() {
    let server = Server::start(|arrived| {
        if is_bad(arrived) {
            return Reply::Hang;
        }
        Reply::Status(200)
    })
    .await;
    let mut batch = events(20);
    batch[3] = event("bad");
    let outcomes = hasty(&server).publish(&batch).await;
    let (bad, good): (Vec<_>, Vec<_>) = outcomes.iter().enumerate().partition(|(n, _)| *n == 3);
    assert!(
        good.iter().all(|(_, outcome)| outcome.is_delivered()),
        "{good:?}"
    );
    assert_eq!(
        judged(bad[0].1),
        ("unknown", ErrorKind::Timeout, Scope::Message)
    );
}

/// Alone, as the probe of a paused route, it is the destination's fault twice, and then its own.
#[tokio::test]
async fn i7_an_event_that_takes_the_server_down_does_not_stop_its_route_for_ever() {
    for (reply, kind) in [
        ((|| Reply::Hang) as fn() -> Reply, ErrorKind::Timeout),
        (|| Reply::Cut, ErrorKind::ConnectionLost),
        (|| Reply::Status(502), ErrorKind::Unavailable),
    ] {
        let server = Server::start(move |_| reply()).await;
        let publisher = hasty(&server);
        let bad = [event("bad")];
        for scope in [Scope::Destination, Scope::Destination, Scope::Message] {
            let outcomes = publisher.publish(&bad).await;
            assert_eq!(judged(&outcomes[0]), ("unknown", kind, scope));
        }
    }
}

#[tokio::test]
async fn nobody_there_did_not_land_and_a_check_tells() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let publisher = configured(&url, |_| ());
    let outcomes = publisher.publish(&events(2)).await;
    let expected = ("failed", ErrorKind::Unavailable, Scope::Destination);
    assert_eq!(judged(&outcomes[0]), expected);
    assert!(outcomes[0].error().unwrap().to_string().contains("refused"));
    assert_eq!(
        publisher.check().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let nameless = configured("http://host.invalid/", |_| ());
    let outcomes = nameless.publish(&events(1)).await;
    assert_eq!(judged(&outcomes[0]), expected);
    assert_eq!(
        nameless.check().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

/// It asks for nothing: many receivers answer whatever arrives by doing something.
#[tokio::test]
async fn a_check_sends_no_request() {
    let server = Server::willing().await;
    server.publisher().check().await.unwrap();
    sleep(Duration::from_millis(50)).await;
    assert!(server.arrived().is_empty());
}

#[tokio::test]
async fn after_the_close_nothing_is_sent() {
    let server = Server::willing().await;
    let publisher = server.publisher();
    publisher.close(Duration::from_secs(1)).await;
    for outcome in publisher.publish(&events(2)).await {
        let expected = ("failed", ErrorKind::Unavailable, Scope::Destination);
        assert_eq!(judged(&outcome), expected);
    }
    assert!(server.arrived().is_empty());
}
