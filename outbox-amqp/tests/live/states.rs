//! States and settings of a server: steps on one private server, which takes 10 seconds to start.

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Outcome, Publisher, Scope};
use outbox_testkit::{Port, eventually, servers::RabbitMq};

use crate::{
    access, interop,
    support::{
        Client, all_delivered, configured, failed, first_appearances, numbers, publisher, unknown,
    },
    tls,
};

const FRAME_BYTES_MAX: usize = 8192;
const MESSAGE_BYTES_MAX: usize = 50_000;

#[tokio::test]
async fn a_server_with_other_settings_and_in_other_states() {
    let (management, encrypted) = (Port::take().unwrap(), Port::take().unwrap());
    let certificates = tls::Certificates::make();
    let mut settings = vec![
        ("frame_max", FRAME_BYTES_MAX.to_string()),
        ("max_message_size", MESSAGE_BYTES_MAX.to_string()),
        ("management.tcp.ip", "127.0.0.1".to_owned()),
        ("management.tcp.port", management.to_string()),
    ];
    settings.extend(certificates.settings(&encrypted));
    let settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let server = RabbitMq::start_with_plugins(&settings, &["rabbitmq_management"]).unwrap();

    frames_are_as_large_as_the_server_says(&server).await;
    a_message_over_the_servers_limit_pays_alone(&server).await;
    interop::consumers_of_other_make_read_it(&server, management.address()).await;
    tls::i15_certificates_are_checked(&server, &encrypted, &certificates).await;
    access::creds_in_log_passwords_are_checked_and_never_shown(&server).await;
    access::i7_a_forbidden_exchange_pays_alone(&server).await;
    an_alarm_stops_publishers_and_never_hangs_them(&server).await;
}

/// Case oversize-payload: by the server's own number once it is known.
async fn frames_are_as_large_as_the_server_says(server: &RabbitMq) {
    let client = Client::connect(&server.url()).await;
    client.queue("frames", &[]).await;
    let publisher = publisher(&server.url());
    // One event for all sizes: the text of its time of creation has no fixed length.
    let event = numbers("frames", 0..1).remove(0);
    let with = |bytes: usize| {
        let mut event = event.clone();
        event.headers.push("h", vec![b'x'; bytes]);
        event
    };
    publisher.validate(&with(FRAME_BYTES_MAX)).unwrap();
    publisher.check().await.unwrap();
    let mut most = FRAME_BYTES_MAX;
    while publisher.validate(&with(most)).is_err() {
        most -= 1;
    }
    let mut events = numbers("frames", 0..3);
    events.insert(1, with(most));
    events.insert(2, with(most + 1));
    // A body of many frames.
    events[3].payload = Some(vec![b'1'; 5 * FRAME_BYTES_MAX].into());
    let outcomes = publisher.publish(&events).await;
    let Outcome::Rejected(error) = &outcomes[2] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    for index in [0, 1, 3, 4] {
        assert!(outcomes[index].is_delivered(), "{:?}", outcomes[index]);
    }
    let there = client.messages("frames").await;
    let lengths: Vec<_> = there.iter().map(|m| m.body.len()).collect();
    assert_eq!(lengths, [1, 1, 5 * FRAME_BYTES_MAX, 1]);
}

/// Case oversize-payload: `max_message_size` is not told, and closes the channel.
async fn a_message_over_the_servers_limit_pays_alone(server: &RabbitMq) {
    let client = Client::connect(&server.url()).await;
    client.queue("sizes", &[]).await;
    let publisher = publisher(&server.url());
    all_delivered(&publisher.publish(&numbers("sizes", 0..1)).await);
    let mut events = numbers("sizes", 1..9);
    events[4].payload = Some(vec![b'1'; MESSAGE_BYTES_MAX + 1].into());
    let outcomes = publisher.publish(&events).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == 4 {
            let error = outcome.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert_eq!(error.failure_scope(), Scope::Message, "{error}");
        } else {
            assert!(outcome.is_delivered(), "{index}: {outcome:?}");
        }
    }
    let expected = [0, 1, 2, 3, 4, 6, 7, 8];
    assert_eq!(first_appearances(&client.numbers("sizes").await), expected);
    // Without others in flight there is no doubt about who it was.
    let outcomes = publisher.publish(&events[4..5]).await;
    failed(&outcomes[0], ErrorKind::Refused, Scope::Message);
}

/// A memory alarm: destination scope, in doubt only what was on its way; afterwards all goes on.
async fn an_alarm_stops_publishers_and_never_hangs_them(server: &RabbitMq) {
    let client = Client::connect(&server.url()).await;
    client.queue("alarm", &[]).await;
    let publisher = publisher(&server.url());
    all_delivered(&publisher.publish(&numbers("alarm", 0..10)).await);
    let watermark = ["set_vm_memory_high_watermark", "absolute", "1"];
    server.ctl(&watermark).unwrap();
    let started = Instant::now();
    for outcome in publisher.publish(&numbers("alarm", 10..20)).await {
        let error = if matches!(outcome, Outcome::Failed(_)) {
            failed(&outcome, ErrorKind::OutOfSpace, Scope::Destination)
        } else {
            unknown(&outcome, ErrorKind::OutOfSpace)
        };
        assert!(error.to_string().contains("alarm"), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    for _ in 0..3 {
        for outcome in publisher.publish(&numbers("alarm", 10..20)).await {
            failed(&outcome, ErrorKind::OutOfSpace, Scope::Destination);
        }
    }
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
    assert!(started.elapsed() < Duration::from_secs(6));
    // A connection that comes during the alarm learns of it by its first message.
    let fresh = configured(&server.url(), |_| ());
    for outcome in fresh.publish(&numbers("alarm", 10..12)).await {
        assert_eq!(outcome.error().unwrap().kind(), ErrorKind::OutOfSpace);
    }

    let watermark = ["set_vm_memory_high_watermark", "absolute", "2GB"];
    server.ctl(&watermark).unwrap();
    let recovered = eventually(Duration::from_secs(20), async || {
        publisher.check().await.ok()
    });
    recovered.await.expect("it recovers");
    all_delivered(&publisher.publish(&numbers("alarm", 10..30)).await);
    let there = client.numbers("alarm").await;
    assert_eq!(first_appearances(&there), (0..30).collect::<Vec<_>>());
}
