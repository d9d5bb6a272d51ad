//! `amqps://`: certificates are checked; without the feature the URL is a wrong setting.

use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::ErrorKind;
use outbox_testkit::{Port, servers::RabbitMq};

fn refused(config: AmqpConfig, part: &str) {
    let error = AmqpPublisher::new(config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains(part), "{error}");
}

fn with_ca(url: &str, path: &std::path::Path) -> AmqpConfig {
    let mut config = AmqpConfig::new(url);
    config.ca_file = Some(path.to_owned());
    config
}

/// A certificate for `localhost`, signed by itself.
pub(crate) struct Certificates(tempfile::TempDir);

impl Certificates {
    pub(crate) fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificates = Self(folder);
        std::fs::write(certificates.path("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(
            certificates.path("key.pem"),
            made.signing_key.serialize_pem(),
        )
        .unwrap();
        certificates
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// The server's settings for a listener with it.
    pub(crate) fn settings(&self, port: &Port) -> Vec<(&'static str, String)> {
        let file = |name| self.path(name).to_str().unwrap().to_owned();
        vec![
            ("listeners.ssl.1", port.address().to_string()),
            ("ssl_options.cacertfile", file("cert.pem")),
            ("ssl_options.certfile", file("cert.pem")),
            ("ssl_options.keyfile", file("key.pem")),
            ("ssl_options.verify", "verify_none".to_owned()),
            ("ssl_options.fail_if_no_peer_cert", "false".to_owned()),
        ]
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) async fn i15_certificates_are_checked(_: &RabbitMq, _: &Port, _: &Certificates) {}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_needs_the_feature() {
    refused(AmqpConfig::new("amqps://localhost"), "TLS");
    let path = std::path::Path::new("ca.pem");
    refused(with_ca("amqp://localhost", path), "feature");
}

#[cfg(feature = "tls")]
pub(crate) async fn i15_certificates_are_checked(
    server: &RabbitMq,
    port: &Port,
    certificates: &Certificates,
) {
    use crate::support::{Client, all_delivered, failed, numbers, publisher};
    use outbox_core::{Publisher as _, Scope};

    let client = Client::connect(&server.url()).await;
    client.queue("tls", &[]).await;
    let untrusting = publisher(&format!("amqps://user:p%40ss@localhost:{port}"));
    let outcomes = untrusting.publish(&numbers("tls", 0..2)).await;
    let error = failed(&outcomes[0], ErrorKind::Unauthenticated, Scope::Destination);
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!format!("{error:?}").contains("p%40ss"), "{error:?}");

    let url = format!("amqps://localhost:{port}");
    let cert = certificates.path("cert.pem");
    let trusting = AmqpPublisher::new(with_ca(&url, &cert)).unwrap();
    trusting.check().await.unwrap();
    all_delivered(&trusting.publish(&numbers("tls", 0..300)).await);
    assert_eq!(client.numbers("tls").await, (0..300).collect::<Vec<_>>());

    refused(with_ca("amqp://localhost", &cert), "amqps");
    refused(
        with_ca(&url, &certificates.path("absent.pem")),
        "can't be read",
    );
    std::fs::write(
        certificates.path("broken.pem"),
        "-----BEGIN CERTIFICATE-----\nAAAA",
    )
    .unwrap();
    refused(with_ca(&url, &certificates.path("broken.pem")), "PEM");
}
