//! What goes out, and what becomes of what comes back.

use std::time::Duration;

use axum::{http::Response, response::IntoResponse as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{Encoding, Error, ErrorKind, Outcome, Publisher as _, Scope, StoredEvent};
use uuid::Uuid;

use super::{Reply, Server, configured, event, events};
use crate::config::Secret;

async fn publish_one(server: &Server, event: StoredEvent) -> Outcome {
    let outcomes = server.publisher().publish(&[event]).await;
    outcomes.into_iter().next().unwrap()
}

fn with(status: u16, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Reply::With(response.body(body.to_owned()).unwrap().into_response())
}

/// The whole request, in each encoding.
#[tokio::test]
async fn i10_a_request_holds_all_of_the_event() {
    let server = Server::willing().await;
    let url = server.url().replace("://", "://me:p%40ss@") + "?k=v";
    let mut event = event("k 1");
    event.headers.push("x-bytes", vec![0, 255]);
    for encoding in [
        Encoding::Plain,
        Encoding::Debezium,
        Encoding::CloudEvents {
            source: "/shop".to_owned(),
        },
    ] {
        let publisher = configured(&url, |config| config.encoding = encoding);
        assert!(publisher.publish(std::slice::from_ref(&event)).await[0].is_delivered());
    }
    let arrived = server.arrived();
    for (request, id, kind) in [
        (&arrived[0], "event-id", "event-type"),
        (&arrived[1], "id", "eventtype"),
        (&arrived[2], "ce-id", "ce-type"),
    ] {
        assert_eq!(request.method, "POST");
        assert_eq!(request.path, "/hook?k=v");
        assert_eq!(request.body, event.payload.as_ref().unwrap());
        assert_eq!(request.text(id).unwrap(), event.id.to_string());
        assert_eq!(request.text(kind), Some("Placed"));
        assert_eq!(request.text("authorization"), Some("Basic bWU6cEBzcw=="));
        assert_eq!(request.decoded("outbox-key").as_deref(), Some("k 1"));
        assert_eq!(request.text("x-bytes"), Some(":AP8=:"));
        assert_eq!(request.text("webhook-signature"), None);
        assert!(request.text("user-agent").unwrap().starts_with("outbox/"));
    }
    assert_eq!(arrived[2].text("ce-source"), Some("/shop"));
    assert_eq!(arrived[2].text("ce-partitionkey"), Some("k%201"));
}

/// A receiver that knows the key accepts what arrived, by another implementation of HMAC.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_receiver_verifies_the_signature() {
    let server = Server::willing().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let publisher = configured(&server.url(), |config| {
        config.secret = Some(Secret::new(secret));
    });
    let mut tombstone = event("b");
    tombstone.payload = None;
    let sent = [event("a"), tombstone];
    for event in &sent {
        assert!(publisher.publish(std::slice::from_ref(event)).await[0].is_delivered());
    }
    for (event, request) in sent.iter().zip(server.arrived().iter()) {
        let id = request.text("webhook-id").unwrap();
        assert_eq!(id, event.id.to_string());
        let timestamp: i64 = request.text("webhook-timestamp").unwrap().parse().unwrap();
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        assert!((now - 60..=now).contains(&timestamp));
        let signed = [format!("{id}.{timestamp}.").as_bytes(), &request.body].concat();
        let key = STANDARD.decode(&secret["whsec_".len()..]).unwrap();
        let hmac = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let hmac = hmac.tls13().unwrap().hkdf_provider;
        let expected =
            STANDARD.encode(hmac.hmac_sign(&rustls::crypto::tls13::OkmBlock::new(&key), &signed));
        assert_eq!(
            request.text("webhook-signature"),
            Some(&*format!("v1,{expected}"))
        );
    }
}

#[tokio::test]
async fn a_refusal_tells_code_and_beginning_of_the_answer() {
    let server = Server::start(|_| with(422, &[], "no such\ncustomer")).await;
    let Outcome::Rejected(error) = publish_one(&server, event("k")).await else {
        panic!("it is refused")
    };
    assert_eq!(error.kind(), ErrorKind::Refused);
    let expected = "publish by HTTP: refused: refused (code=422, answer=no such customer)";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn retry_after_reaches_the_error() {
    for status in [429, 503] {
        let server = Server::start(move |_| with(status, &[("retry-after", "7")], "later")).await;
        let outcome = publish_one(&server, event("k")).await;
        let Outcome::Failed(error) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(error.failure_scope(), Scope::Destination);
        assert_eq!(error.retry_delay(), Some(Duration::from_secs(7)));
    }
}

/// Where a redirect leads, nobody has allowed to know these events.
#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Server::willing().await;
    let to = other.url();
    let server = Server::start(move |_| with(307, &[("location", &to)], "")).await;
    let outcome = publish_one(&server, event("k")).await;
    assert_eq!(
        outcome.error().map(Error::kind),
        Some(ErrorKind::Configuration)
    );
    assert!(other.arrived().is_empty());
}

/// Case creds-in-log: a server that repeats what it got.
#[tokio::test]
async fn i15_an_answer_that_repeats_the_request_is_withheld() {
    let server = Server::start(|arrived| {
        let what = match arrived.text("outbox-key") {
            Some("payload") => String::from_utf8(arrived.body.to_vec()).unwrap(),
            _ => arrived.text("authorization").unwrap().to_owned(),
        };
        with(400, &[], &format!("I don't like {what}"))
    })
    .await;
    let url = server.url().replace("://", "://me:p%40ss@");
    let publisher = configured(&url, |config| config.secret = Some(Secret::new("k3y")));
    for outcome in publisher
        .publish(&[event("payload"), event("password")])
        .await
    {
        let shown = format!("{:?} {}", outcome, outcome.error().unwrap());
        assert!(shown.contains("withheld"), "{shown}");
        for secret in ["p@ss", "p%40ss", "bWU6cEBzcw", "k3y", "payload of"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }
    assert!(!format!("{publisher:?}").contains("hook"), "{publisher:?}");
}

/// I8: a body without an end costs neither memory nor the outcome.
#[tokio::test]
async fn the_status_is_the_answer_whatever_the_body_does() {
    let server = Server::start(|_| {
        let endless =
            futures::stream::repeat_with(|| Ok::<_, std::convert::Infallible>("x".repeat(10_000)));
        Reply::With(axum::body::Body::from_stream(endless).into_response())
    })
    .await;
    for outcome in server.publisher().publish(&events(3)).await {
        assert!(outcome.is_delivered(), "{outcome:?}");
    }
    let silent = Server::start(|_| {
        let never = futures::stream::pending::<Result<String, std::convert::Infallible>>();
        Reply::With(axum::body::Body::from_stream(never).into_response())
    })
    .await;
    for outcome in super::hasty(&silent).publish(&events(3)).await {
        assert!(outcome.is_delivered(), "{outcome:?}");
    }
}

#[tokio::test]
async fn what_can_t_be_a_header_is_refused_before_the_wire() {
    let server = Server::willing().await;
    let mut wrong = event("k");
    wrong.id = Uuid::from_u128(1);
    wrong.headers.push("Transfer-Encoding", "chunked");
    let publisher = server.publisher();
    assert_eq!(
        publisher.validate(&wrong).unwrap_err().kind(),
        ErrorKind::InvalidEvent
    );
    let outcomes = publisher.publish(&[wrong, event("other")]).await;
    assert!(matches!(&outcomes[0], Outcome::Rejected(_)), "{outcomes:?}");
    assert!(outcomes[1].is_delivered(), "{outcomes:?}");
    assert_eq!(server.arrived().len(), 1);
}
