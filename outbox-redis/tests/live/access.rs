//! Users, passwords and permissions; and what is never shown of them (I15, case creds-in-log).

use outbox_core::{Error, ErrorKind, Outcome, Publisher, Scope};
use outbox_redis::RedisPublisher;
use outbox_testkit::servers::Redis;

use crate::support::{
    all_delivered, configured, connection, entries, failed, numbers, publisher, run,
};

const PASSWORD: &str = "p@ss:w/ord%21";
const ENCODED: &str = "p%40ss%3Aw%2Ford%2521";

fn url(server: &Redis, user: &str, password: &str) -> String {
    format!("redis://{user}:{password}@{}", server.address())
}

fn shows_no_secret(publisher: &RedisPublisher, error: &Error) {
    let shown = format!("{error} {error:?} {publisher:?}");
    for secret in [PASSWORD, ENCODED, "p@ss", "p%40ss", "wr0ng"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn creds_in_log_passwords_are_checked_and_never_shown() {
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    run(
        &mut connection,
        &format!("CONFIG SET requirepass {PASSWORD}"),
    )
    .await;
    let with_select = format!("{}1", server.url());
    for url in [
        server.url(),
        with_select,
        url(&server, "", "wr0ng"),
        url(&server, "nobody", ENCODED),
    ] {
        let publisher = publisher(&url);
        for outcome in publisher.publish(&numbers("t", 0..3)).await {
            let error = failed(&outcome, ErrorKind::Unauthenticated, Scope::Destination);
            shows_no_secret(&publisher, error);
        }
        let error = publisher.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        shows_no_secret(&publisher, &error);
    }
    let publisher = publisher(&url(&server, "", ENCODED));
    publisher.check().await.unwrap();
    all_delivered(&publisher.publish(&numbers("t", 0..3)).await);
    assert_eq!(entries(&mut connection, "t").await.len(), 3);
}

#[tokio::test]
async fn creds_in_log_an_unreachable_server_shows_its_address_only() {
    let publisher = publisher(&format!("redis://user:{ENCODED}@127.0.0.1:1/0"));
    let outcomes = publisher.publish(&numbers("t", 0..2)).await;
    let error = failed(&outcomes[1], ErrorKind::Unavailable, Scope::Destination);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    shows_no_secret(&publisher, error);
    let error = publisher.check().await.unwrap_err();
    shows_no_secret(&publisher, &error);
}

/// A stream that the user may not write makes the server drop the whole transaction: the others go
/// again at once, without it.
#[tokio::test]
async fn i7_a_forbidden_stream_fails_alone() {
    for transactional in [true, false] {
        let server = Redis::start().unwrap();
        let mut connection = connection(&server.url()).await;
        run(&mut connection, "ACL SETUSER relay on >pw ~mine* +@all").await;
        let publisher = configured(&url(&server, "relay", "pw"), |c| {
            c.transactional = transactional;
            c.pipeline_events_max = 4;
        });
        let mut events = numbers("mine", 0..10);
        for index in [1, 2, 9] {
            events[index].topic = "other".to_owned();
        }
        let outcomes = publisher.publish(&events).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            if [1, 2, 9].contains(&index) {
                failed(outcome, ErrorKind::Unauthorized, Scope::Topic);
            } else {
                assert!(outcome.is_delivered(), "{index}: {outcome:?}");
            }
        }
        let stored: Vec<_> = entries(&mut connection, "mine").await;
        let numbers: Vec<_> = stored.iter().map(crate::support::Entry::number).collect();
        assert_eq!(numbers, [0, 3, 4, 5, 6, 7, 8]);
        run(&mut connection, "ACL SETUSER relay ~*").await;
        all_delivered(&publisher.publish(&events[1..3]).await);
        publisher.check().await.unwrap();
    }
}

#[tokio::test]
async fn forbidden_commands_stop_everything_and_hide_nothing() {
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    run(&mut connection, "ACL SETUSER relay on >pw ~* +@all -xadd").await;
    let publisher = publisher(&url(&server, "relay", "pw"));
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        failed(&outcome, ErrorKind::Unauthorized, Scope::Destination);
    }

    // Without EXEC nothing is stored.
    run(&mut connection, "ACL SETUSER relay +xadd -exec").await;
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        failed(&outcome, ErrorKind::Unauthorized, Scope::Destination);
    }
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    assert!(entries(&mut connection, "t").await.is_empty());

    // Without MULTI each one is stored by itself, and said to be; what comes behind is not sent.
    run(&mut connection, "ACL SETUSER relay +exec -multi").await;
    let publisher = configured(&url(&server, "relay", "pw"), |c| c.pipeline_events_max = 2);
    let outcomes = publisher.publish(&numbers("t", 0..3)).await;
    assert!(outcomes[0].is_delivered() && outcomes[1].is_delivered());
    failed(&outcomes[2], ErrorKind::Unauthorized, Scope::Destination);
    assert_eq!(entries(&mut connection, "t").await.len(), 2);

    run(&mut connection, "ACL SETUSER relay +multi").await;
    all_delivered(&publisher.publish(&numbers("t", 2..5)).await);
    publisher.check().await.unwrap();
    assert_eq!(entries(&mut connection, "t").await.len(), 5);
}

/// CONFIG is often forbidden; the limit is then the usual one, or the one that is set.
#[tokio::test]
async fn a_user_with_the_fewest_rights_can_publish() {
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    run(
        &mut connection,
        "ACL SETUSER relay on >pw ~* -@all +xadd +multi +exec",
    )
    .await;
    let relay = publisher(&url(&server, "relay", "pw"));
    relay.check().await.unwrap();
    all_delivered(&relay.publish(&numbers("t", 0..3)).await);
    assert_eq!(relay.capabilities().message_bytes_max, Some(512 << 20));
    let relay = configured(&url(&server, "relay", "pw"), |c| {
        c.field_bytes_max = Some(40);
    });
    let mut events = numbers("t", 0..2);
    events[1].payload = Some(vec![b'1'; 41].into());
    let outcomes = relay.publish(&events).await;
    assert!(outcomes[0].is_delivered(), "{:?}", outcomes[0]);
    assert!(
        matches!(&outcomes[1], Outcome::Rejected(error) if error.kind() == ErrorKind::TooLarge)
    );
}
