//! Who may sign in, and what the server permits.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use outbox_core::{ErrorKind, Publisher, Scope};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::servers::Nats;

use crate::support::{
    all_delivered, configured, count, failed, numbers, publisher, stream, unknown,
};

const SECRET: &str = "p@ss:w/ord%21";
const ENCODED: &str = "p%40ss%3Aw%2Ford%2521";

/// Publishes and checks; the sign-in is refused as such, and nothing shows the secret.
async fn is_refused(publisher: &NatsPublisher) {
    for outcome in publisher.publish(&numbers("t", 0..2)).await {
        let error = failed(&outcome, ErrorKind::Unauthenticated, Scope::Destination);
        let shown = format!("{error} {error:?} {publisher:?}");
        for form in [SECRET, ENCODED, "wr0ng"] {
            assert!(!shown.contains(form), "{shown}");
        }
    }
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
}

async fn works(publisher: &NatsPublisher) {
    publisher.check().await.unwrap();
    all_delivered(&publisher.publish(&numbers("t", 0..2)).await);
}

#[tokio::test]
async fn user_and_password_of_the_url() {
    let settings = format!("authorization {{ user: \"us er\", password: \"{SECRET}\" }}");
    let server = Nats::start_with(&settings).unwrap();
    let url = |user: &str| format!("nats://{user}@{}", server.address());
    let right = url(&format!("us%20er:{ENCODED}"));
    stream(&right, "S", "t").await;
    works(&publisher(&right)).await;
    is_refused(&publisher(&url("us%20er:wr0ng"))).await;
    is_refused(&publisher(&server.url())).await;
}

#[tokio::test]
async fn a_token_of_the_url() {
    let server = Nats::start_with(&format!("authorization {{ token: \"{SECRET}\" }}")).unwrap();
    let url = |token: &str| format!("nats://{token}@{}", server.address());
    let options = async_nats::ConnectOptions::with_token(SECRET.to_owned());
    let client = options.connect(server.url()).await.unwrap();
    let streams = async_nats::jetstream::new(client);
    let config = async_nats::jetstream::stream::Config {
        name: "S".to_owned(),
        subjects: vec!["t".to_owned()],
        ..Default::default()
    };
    streams.create_stream(config).await.unwrap();
    works(&publisher(&url(ENCODED))).await;
    is_refused(&publisher(&url("wr0ng"))).await;
}

fn wrong_setting(config: NatsConfig, part: &str) {
    let error = NatsPublisher::new(config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains(part), "{error}");
}

fn with(url: &str, set: impl FnOnce(&mut NatsConfig)) -> NatsConfig {
    let mut config = NatsConfig::new(url);
    set(&mut config);
    config
}

#[tokio::test]
async fn an_nkey_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seed.nk");
    let key = KeyPair::new_user();
    let settings = format!(
        "authorization {{ users: [ {{ nkey: {} }}, {{ user: admin, password: admin }} ] }}",
        key.public_key()
    );
    let server = Nats::start_with(&settings).unwrap();
    stream(
        &format!("nats://admin:admin@{}", server.address()),
        "S",
        "t",
    )
    .await;
    std::fs::write(&file, format!("{}\n", key.seed().unwrap())).unwrap();
    let set = |c: &mut NatsConfig| c.nkey_file = Some(file.clone());
    let publisher = configured(&server.url(), set);
    works(&publisher).await;

    // Another key in the file counts from the next connection on.
    std::fs::write(&file, KeyPair::new_user().seed().unwrap()).unwrap();
    is_refused(&configured(&server.url(), set)).await;

    std::fs::write(&file, key.public_key()).unwrap();
    wrong_setting(with(&server.url(), set), "nkey_file");
    std::fs::remove_file(&file).unwrap();
    wrong_setting(with(&server.url(), set), "nkey_file");
}

/// A JWT as `nsc` makes it.
fn jwt(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let (iss, sub) = (issuer.public_key(), subject.public_key());
    let claims = format!(
        r#"{{"jti":"{name}","iat":1700000000,"iss":"{iss}","sub":"{sub}","name":"{name}","nats":{nats}}}"#
    );
    let signed = format!(
        "{}.{}",
        part(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#),
        part(&claims)
    );
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

fn credentials(jwt: &str, seed: &str, file: &Path) {
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n************************* IMPORTANT *************************\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(file, text).unwrap();
}

#[tokio::test]
async fn credentials_of_a_file() {
    let (operator, system, account) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_account(),
    );
    let user = KeyPair::new_user();
    let limits = r#"{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1,"mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1}"#;
    let of_account = |key, name, limits: &str| {
        jwt(
            &operator,
            key,
            name,
            &format!(r#"{{"limits":{limits},"type":"account","version":2}}"#),
        )
    };
    let settings = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
        jwt(
            &operator,
            &operator,
            "O",
            r#"{"type":"operator","version":2}"#
        ),
        system.public_key(),
        system.public_key(),
        of_account(
            &system,
            "SYS",
            &limits.replace(
                "\"mem_storage\":-1,\"disk_storage\":-1,\"streams\":-1,\"consumer\":-1",
                "\"mem_storage\":0"
            )
        ),
        account.public_key(),
        of_account(&account, "A", limits),
    );
    let server = Nats::start_with(&settings).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("user.creds");
    let of_user = jwt(
        &account,
        &user,
        "U",
        r#"{"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#,
    );
    credentials(&of_user, &user.seed().unwrap(), &file);

    let options = async_nats::ConnectOptions::with_credentials_file(&file)
        .await
        .unwrap();
    let streams = async_nats::jetstream::new(options.connect(server.url()).await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "S".to_owned(),
        subjects: vec!["t".to_owned()],
        ..Default::default()
    };
    streams.create_stream(config).await.unwrap();

    let set = |c: &mut NatsConfig| c.credentials_file = Some(file.clone());
    works(&configured(&server.url(), set)).await;
    is_refused(&publisher(&server.url())).await;
    let stranger = KeyPair::new_user();
    credentials(&of_user, &stranger.seed().unwrap(), &file);
    is_refused(&configured(&server.url(), set)).await;
    std::fs::write(&file, "no credentials").unwrap();
    wrong_setting(with(&server.url(), set), "credentials_file");
    std::fs::remove_file(&file).unwrap();
    wrong_setting(with(&server.url(), set), "credentials_file");
}

/// A server with a user `relay` of these permissions beside one who may everything.
async fn permitted(permissions: &str) -> (Nats, String) {
    let settings = format!(
        "authorization {{ users: [ {{ user: admin, password: admin }}, {{ user: relay, password: pw, permissions: {permissions} }} ] }}"
    );
    let server = Nats::start_with(&settings).unwrap();
    let admin = format!("nats://admin:admin@{}", server.address());
    stream(&admin, "S", "t").await;
    stream(&admin, "X", "secret.*").await;
    let relay = format!("nats://relay:pw@{}", server.address());
    (server, relay)
}

#[tokio::test]
async fn a_user_with_the_fewest_rights_can_publish() {
    let (server, relay) = permitted("{ publish: [t], subscribe: [\"_INBOX.>\"] }").await;
    let publisher = configured(&relay, |c| c.streams = vec!["S".to_owned()]);
    publisher.check().await.unwrap();
    let mut events = numbers("t", 0..20);
    for index in [4, 9, 15] {
        events[index].topic = format!("secret.{}", index % 2);
    }
    let outcomes = publisher.publish(&events).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if [4, 9, 15].contains(&index) {
            failed(outcome, ErrorKind::Unauthorized, Scope::Topic);
        } else {
            assert!(outcome.is_delivered(), "{index}: {outcome:?}");
        }
    }
    let admin = format!("nats://admin:admin@{}", server.address());
    assert_eq!(
        (count(&admin, "S").await, count(&admin, "X").await),
        (17, 0)
    );
    let mut missing = numbers("t", 0..1);
    "t2".clone_into(&mut missing[0].topic);
    failed(
        &publisher.publish(&missing).await[0],
        ErrorKind::Unauthorized,
        Scope::Topic,
    );
}

/// Without its answers the publisher can know nothing, and says what to set.
#[tokio::test]
async fn a_user_without_answers_is_told_so() {
    let (_server, relay) = permitted("{ publish: [\">\"], subscribe: [\"mine.>\"] }").await;
    let blind = publisher(&relay);
    let error = blind.check().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.failure_scope()),
        (ErrorKind::Unauthorized, Scope::Destination)
    );
    assert!(error.to_string().contains("inbox_prefix"), "{error}");
    for outcome in blind.publish(&numbers("t", 0..3)).await {
        unknown(&outcome, ErrorKind::Unauthorized, Scope::Destination);
    }
    works(&configured(&relay, |c| {
        c.inbox_prefix = "mine.answers".to_owned();
    }))
    .await;
}
