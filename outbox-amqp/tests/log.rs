//! What the driver's own threads log. A program of its own: the log of a whole process is looked at, and
//! a client of a test would write into it too. URL of the server: `OUTBOX_TEST_AMQP_URL`.

use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{ErrorKind, Event, Publisher as _, Scope};
use outbox_testkit::{
    log::Lines,
    publishing::{failed, shared_url, stored, unique},
};
use tracing::Level;

/// Case creds-in-log: the driver would write returned messages whole, and the frame with the password.
#[tokio::test]
async fn creds_in_log_not_by_the_driver_s_threads_either() {
    let lines = Lines::default();
    let written = lines.clone();
    let everything = tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .with_ansi(false)
        .with_writer(move || written.clone());
    tracing::subscriber::set_global_default(everything.finish()).unwrap();

    let publisher =
        AmqpPublisher::new(AmqpConfig::new(shared_url("OUTBOX_TEST_AMQP_URL"))).unwrap();
    let event = Event::new(unique("nowhere"), "T").header("h", "se-cret");
    let event = stored(&event.bytes("hid-den").unwrap());
    let outcomes = publisher.publish(&[event]).await;
    failed(&outcomes[0], ErrorKind::Unroutable, Scope::Topic);
    publisher.close(std::time::Duration::from_secs(5)).await;

    let text = lines.text();
    assert!(text.contains("connected"), "nothing was followed: {text}");
    let payload = format!("{:?}", b"hid-den");
    for secret in [
        "se-cret",
        "hid-den",
        payload.trim_matches(['[', ']']),
        "\\0guest",
    ] {
        assert_eq!(lines.with(secret), [""; 0]);
    }
}
