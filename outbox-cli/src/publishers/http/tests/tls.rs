//! `https://`: certificates are checked.

use std::{io, net::SocketAddr, path::Path, sync::Arc};

use axum::serve::Listener;
use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Reply, Server, configured, event};
use crate::{
    config::Secret,
    publishers::http::{config::HttpConfig, publisher::HttpPublisher},
};

struct TlsListener {
    tcp: TcpListener,
    tls: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.tcp.accept().await.unwrap();
            // Who does not trust the certificate leaves here.
            if let Ok(stream) = self.tls.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A server for `localhost`, with its certificate in a file.
async fn start(ca_file: &Path) -> Server {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(ca_file, made.cert.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))
        .unwrap();
    let listener = TlsListener {
        tcp: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        tls: TlsAcceptor::from(Arc::new(config)),
    };
    Server::on(listener, |_| Reply::Status(200))
}

fn refused(url: &str, ca_file: &Path, part: &str) {
    let mut config = HttpConfig::new(Secret::new(url));
    config.ca_file = Some(ca_file.to_owned());
    let error = HttpPublisher::new(&config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains(part), "{error}");
}

#[tokio::test]
async fn i15_certificates_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (own, other) = (path("own.pem"), path("other.pem"));
    let server = start(&own).await;
    start(&other).await;
    let port = server.address.port();
    let to = |host: &str, ca_file: &Path| {
        let url = format!("https://me:p%40ss@{host}:{port}/hook");
        configured(&url, |config| config.ca_file = Some(ca_file.to_owned()))
    };

    let trusting = to("localhost", &own);
    trusting.check().await.unwrap();
    let outcomes = trusting.publish(&[event("a"), event("b")]).await;
    assert!(outcomes.iter().all(Outcome::is_delivered), "{outcomes:?}");
    assert_eq!(server.arrived().len(), 2);

    // Signed by nobody that is trusted, and made out to another name.
    for distrusting in [to("localhost", &other), to("127.0.0.1", &own)] {
        let checked = distrusting.check().await.unwrap_err();
        let outcomes = distrusting.publish(&[event("c")]).await;
        let Outcome::Failed(error) = &outcomes[0] else {
            panic!("{outcomes:?}")
        };
        for error in [error, &checked] {
            let found = (error.kind(), error.failure_scope());
            assert_eq!(found, (ErrorKind::Unauthenticated, Scope::Destination));
            assert!(error.to_string().contains("certificate"), "{error}");
            assert!(!format!("{error:?}").contains("p%40ss"), "{error:?}");
        }
    }
    // A server without TLS.
    let plain = Server::willing().await;
    let url = format!("https://localhost:{}/", plain.address.port());
    let mistaken = configured(&url, |config| config.ca_file = Some(own.clone()));
    let outcomes = mistaken.publish(&[event("d")]).await;
    let error = outcomes[0].error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert_eq!((server.arrived().len(), plain.arrived().len()), (2, 0));

    refused("http://localhost", &own, "https");
    refused("https://localhost", &path("absent.pem"), "can't be read");
    std::fs::write(path("broken.pem"), "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
    refused("https://localhost", &path("broken.pem"), "PEM");
    std::fs::write(path("empty.pem"), "").unwrap();
    refused("https://localhost", &path("empty.pem"), "PEM");
}
