//! `rediss://`: certificates are checked; without the feature the URL is a wrong setting.

use outbox_core::ErrorKind;
use outbox_redis::{RedisConfig, RedisPublisher};

fn refused(config: RedisConfig, part: &str) {
    let error = RedisPublisher::new(config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains(part), "{error}");
}

fn with_ca(url: &str, path: &std::path::Path) -> RedisConfig {
    let mut config = RedisConfig::new(url);
    config.ca_file = Some(path.to_owned());
    config
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_needs_the_feature() {
    refused(RedisConfig::new("rediss://localhost"), "TLS");
    let path = std::path::Path::new("ca.pem");
    refused(with_ca("redis://localhost", path), "feature");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn i15_certificates_are_checked() {
    use outbox_core::{Publisher as _, Scope};
    use outbox_testkit::{Port, servers::Redis};

    use crate::support::{all_delivered, connection, entries, failed, numbers, publisher};

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let tls = Port::take().unwrap();
    let port = tls.to_string();
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let server = Redis::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &text("cert.pem"),
        "--tls-key-file",
        &text("key.pem"),
        "--tls-ca-cert-file",
        &text("cert.pem"),
        "--tls-auth-clients",
        "no",
    ])
    .unwrap();

    let url = format!("rediss://user:p%40ss@localhost:{port}");
    let outcomes = publisher(&url).publish(&numbers("t", 0..2)).await;
    let error = failed(&outcomes[0], ErrorKind::Unauthenticated, Scope::Destination);
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!format!("{error:?}").contains("p%40ss"), "{error:?}");

    let url = format!("rediss://localhost:{port}");
    let trusting = RedisPublisher::new(with_ca(&url, &path("cert.pem"))).unwrap();
    trusting.check().await.unwrap();
    all_delivered(&trusting.publish(&numbers("t", 0..2)).await);
    assert_eq!(
        entries(&mut connection(&server.url()).await, "t")
            .await
            .len(),
        2
    );

    refused(with_ca("redis://localhost", &path("cert.pem")), "rediss");
    refused(with_ca(&url, &path("absent.pem")), "can't be read");
    std::fs::write(path("broken.pem"), "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
    refused(with_ca(&url, &path("broken.pem")), "PEM");
}
