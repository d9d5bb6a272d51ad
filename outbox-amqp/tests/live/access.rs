//! Users, passwords and permissions; and what is never shown of them (I15, case creds-in-log).

use outbox_core::{Error, ErrorKind, Event, Publisher, Scope};
use outbox_testkit::{log::Lines, servers::RabbitMq};
use tracing::Level;

use crate::support::{Client, all_delivered, failed, numbered, numbers, publisher, stored};

const PASSWORD: &str = "p@ss:w/ord%21";
const ENCODED: &str = "p%40ss%3Aw%2Ford%2521";
const SECRETS: [&str; 6] = ["p@ss", "p%40ss", "ord%21", "ord!", "wr0ng", "se-cret"];

fn url(server: &RabbitMq, user: &str, password: &str, vhost: &str) -> String {
    format!("amqp://{user}:{password}@{}/{vhost}", server.address())
}

fn shows_no_secret(shown: &str) {
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}

async fn refused(url: &str, kind: ErrorKind) -> Error {
    let publisher = publisher(url);
    for outcome in publisher.publish(&numbers("access", 0..2)).await {
        let error = failed(&outcome, kind, Scope::Destination);
        shows_no_secret(&format!("{error} {error:?} {publisher:?}"));
    }
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    shows_no_secret(&format!("{error} {error:?}"));
    error
}

pub(crate) async fn creds_in_log_passwords_are_checked_and_never_shown(server: &RabbitMq) {
    let log = Lines::default();
    let guard = log.follow_at(Level::TRACE);
    server.ctl(&["add_user", "relay", PASSWORD]).unwrap();
    server.ctl(&["add_vhost", "closed"]).unwrap();
    let all = ["set_permissions", "relay", ".*", ".*", ".*"];
    server.ctl(&all).unwrap();
    let client = Client::connect(&server.url()).await;
    client.queue("access", &[]).await;

    let wrong = url(server, "relay", "wr0ng", "%2f");
    refused(&wrong, ErrorKind::Unauthenticated).await;
    let nobody = url(server, "nobody", ENCODED, "%2f");
    refused(&nobody, ErrorKind::Unauthenticated).await;
    let absent = url(server, "relay", ENCODED, "absent");
    let error = refused(&absent, ErrorKind::Unauthorized).await;
    assert!(error.to_string().contains("530"), "{error}");
    let closed = url(server, "relay", ENCODED, "closed");
    refused(&closed, ErrorKind::Unauthorized).await;

    let publisher = publisher(&url(server, "relay", ENCODED, "%2f"));
    publisher.check().await.unwrap();
    // Returned messages come back with all that is in them.
    let event = |topic: &str| {
        let event = Event::new(topic, "T").header("h", "se-cret header");
        stored(&event.bytes("se-cret").unwrap())
    };
    let outcomes = publisher
        .publish(&[event("access"), event("nowhere")])
        .await;
    assert!(outcomes[0].is_delivered(), "{:?}", outcomes[0]);
    let error = failed(&outcomes[1], ErrorKind::Unroutable, Scope::Topic);
    drop(guard);
    let shown = format!("{error:?} {publisher:?} {}", log.text());
    assert!(shown.contains(&server.address().to_string()), "{shown}");
    shows_no_secret(&shown);
}

/// 403 closes the channel, for an exchange that is there.
pub(crate) async fn i7_a_forbidden_exchange_pays_alone(server: &RabbitMq) {
    let write = [
        "set_permissions",
        "relay",
        ".*",
        "^(amq\\.default|mine)$",
        ".*",
    ];
    server.ctl(&write).unwrap();
    let client = Client::connect(&server.url()).await;
    client.queue("mine", &[]).await;
    for exchange in ["mine", "other"] {
        client.exchange(exchange, lapin::ExchangeKind::Fanout).await;
        client.bind("mine", exchange, "").await;
    }
    let publisher = publisher(&url(server, "relay", ENCODED, "%2f"));
    let topics = ["mine", "other/k", "mine/k", "other/k", "mine"];
    for _ in 0..2 {
        let events: Vec<_> = (0..5).map(|n| numbered(topics[n], n)).collect();
        let outcomes = publisher.publish(&events).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            if topics[index] == "other/k" {
                let error = failed(outcome, ErrorKind::Unauthorized, Scope::Topic);
                assert!(error.to_string().contains("'other'"), "{error}");
            } else {
                assert!(outcome.is_delivered(), "{index}: {outcome:?}");
            }
        }
    }
    assert_eq!(client.numbers("mine").await, [0, 2, 4, 0, 2, 4]);
    let write = ["set_permissions", "relay", ".*", ".*", ".*"];
    server.ctl(&write).unwrap();
    all_delivered(&publisher.publish(&numbers("other/k", 0..2)).await);
}
