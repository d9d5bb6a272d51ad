//! The publisher `http` in a relay.

use std::time::Duration;

use axum::{
    http::{StatusCode, header::RETRY_AFTER},
    response::IntoResponse as _,
};

use crate::receiver::Receiver;
use crate::support::{PASSWORD, PASSWORD_ENCODED, Place, Running, arg, lines, wait};

const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";

/// Signs, and must not be shown either.
const SECRET: &str = "s3cret-of-the-signature";

fn relay(place: &Place, url: &str) -> Running {
    let mut command = place.command(&["relay", "--http", "127.0.0.1:0", "--log-level", "debug"]);
    command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", url);
    let secret = place.file("secret", format!("{SECRET}\n"));
    command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__SECRET_FILE", secret);
    Running::start(command)
}

#[test]
fn a_relay_posts_signed_events() {
    let place = Place::migrated();
    let receiver = Receiver::start(|_, _| StatusCode::NO_CONTENT.into_response());
    place
        .outbox_with(&["enqueue", "--stdin"], lines("t", 200).as_bytes())
        .success();
    let relay = relay(&place, &receiver.url());
    place.wait_for(DONE, 200);
    relay.stop();
    let arrived = receiver.arrived();
    assert_eq!(arrived.len(), 200, "once each");
    for request in &arrived {
        assert_eq!(request.text("outbox-topic"), "t");
        assert_eq!(request.text("content-type"), "application/json");
        assert_eq!(
            request.text("outbox-key"),
            format!("k{}", String::from_utf8_lossy(&request.body))
        );
        assert_eq!(request.text("webhook-id"), request.text("event-id"));
        assert!(request.text("webhook-signature").starts_with("v1,"));
    }
}

/// A server that says when to come again is not asked before, and the outage burns no attempt.
#[test]
fn retry_after_is_honoured_and_burns_no_attempt() {
    const OUTAGES: usize = 2;
    let place = Place::migrated();
    let receiver = Receiver::start(|number, _| {
        if number < OUTAGES {
            return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "2")]).into_response();
        }
        StatusCode::OK.into_response()
    });
    place
        .outbox_with(&["enqueue", "--stdin"], lines("t", 1).as_bytes())
        .success();
    let relay = relay(&place, &receiver.url());
    relay.wait_for_log("unavailable");
    place.wait_for(DONE, 1);
    relay.stop();
    let arrived = receiver.arrived();
    assert_eq!(arrived.len(), OUTAGES + 1);
    for pair in arrived.windows(2) {
        let pause = pair[1].at - pair[0].at;
        assert!(
            pause >= Duration::from_secs(2),
            "asked again after {pause:?}"
        );
        assert_eq!(pair[0].text("event-id"), pair[1].text("event-id"));
        assert_eq!(pair[0].body, pair[1].body);
    }
    let attempts = "SELECT max(attempts)::bigint FROM outbox.queue";
    assert_eq!(place.number(attempts), 1);
}

/// What the server refuses is a dead letter with the server's reason; others pass.
#[test]
fn a_refused_event_is_a_dead_letter_with_its_reason() {
    let place = Place::migrated();
    let receiver = Receiver::start(|_, arrived| match &arrived.body[..] {
        b"3" => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "no customer of that number",
        )
            .into_response(),
        _ => StatusCode::OK.into_response(),
    });
    place
        .outbox_with(&["enqueue", "--stdin"], lines("t", 10).as_bytes())
        .success();
    let relay = relay(&place, &receiver.url());
    place.wait_for(DONE, 9);
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'failed'",
        1,
    );
    relay.stop();
    let dead = place.outbox(&["dead", "list"]).success();
    assert!(
        dead.contains("code=422, answer=no customer of that number"),
        "{dead}"
    );
}

/// Case creds-in-log: a server that refuses the password and repeats it.
#[test]
fn creds_in_log_of_a_webhook_that_is_refused() {
    let place = Place::migrated();
    let receiver = Receiver::start(|_, arrived| {
        let text = format!("no: {PASSWORD} {} {SECRET}", arrived.text("authorization"));
        (StatusCode::UNAUTHORIZED, text).into_response()
    });
    place
        .outbox_with(&["enqueue", "--stdin"], lines("t", 5).as_bytes())
        .success();
    let url = receiver
        .url()
        .replace("://", &format!("://u:{PASSWORD_ENCODED}@"));
    let relay = relay(&place, &url);
    wait("a paused route", || {
        relay.get("/readyz").1.contains("\"paused\":true")
    });
    let ready = relay.get("/readyz").1;
    let metrics = relay.get("/metrics").1;
    let log = relay.stop();
    assert!(log.contains("unauthenticated"), "{log}");
    let authorization = receiver.arrived()[0].text("authorization").to_owned();
    let base64 = authorization.strip_prefix("Basic ").unwrap();
    for (what, text) in [
        ("/readyz", &ready),
        ("/metrics", &metrics),
        ("the log", &log),
    ] {
        for form in [PASSWORD, PASSWORD_ENCODED, "p@ss", "ord%21", base64, SECRET] {
            assert!(!text.contains(form), "{what}: {form} in {text}");
        }
    }
    let attempts = "SELECT max(attempts)::bigint FROM outbox.queue";
    assert_eq!(place.number(attempts), 0, "given back");
}

#[test]
fn wrong_settings_of_webhooks_are_told_by_name_and_unseen() {
    let place = Place::migrated();
    for (settings, expected) in [
        (
            format!("url = \"http://u:{PASSWORD}@h:port\""),
            "setting=url",
        ),
        (
            "url = \"http://h\", transactional = true".to_owned(),
            "transactional has no meaning for the publisher http",
        ),
        (
            format!("url = \"http://h\", secret = \"whsec_{PASSWORD}\""),
            "setting=secret",
        ),
        (
            "url = \"http://h\", requests_in_flight_max = 0".to_owned(),
            "setting=requests_in_flight_max",
        ),
        (
            "url = \"http://h\", secret_file = \"absent\"".to_owned(),
            "routes.default.publisher.secret_file: can't read absent",
        ),
        (
            "url = \"http://h\", ca_file = \"absent\"".to_owned(),
            "setting=ca_file",
        ),
        (
            format!("kind = \"http\", url = \"ftp://u:{PASSWORD}@h\""),
            "setting=url",
        ),
    ] {
        let file = place.file(
            "hook.toml",
            format!("routes.default.publisher = {{ {settings} }}"),
        );
        let ended = place.outbox(&["relay", "--config", arg(&file)]);
        let line = ended.failure(2, &[expected]);
        assert!(!line.contains("p@ss") && !line.contains("ord%21"), "{line}");
    }
}
