//! The driver's client, with or without TLS.

use std::path::Path;

use outbox_core::{Error, ErrorKind, Result};
use redis::{Client, ConnectionInfo};

use crate::error::CONNECT;

/// A client for this address that trusts the certificates in the file, or, without one, those of
/// the system. Reads the file; no other I/O.
#[cfg(feature = "tls")]
pub(crate) fn client(info: ConnectionInfo, ca_file: Option<&Path>) -> Result<Client> {
    install_provider();
    let Some(path) = ca_file else {
        return Client::open(info).map_err(|_| wrong("the driver does not take this address"));
    };
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return Err(wrong("`ca_file` needs a rediss:// URL"));
    }
    let certificates = std::fs::read(path)
        .map_err(|error| wrong("`ca_file` can't be read").context("reason", error))?;
    let certificates = redis::TlsCertificates {
        client_tls: None,
        root_cert: Some(certificates),
    };
    Client::build_with_tls(info, certificates)
        .map_err(|_| wrong("`ca_file` does not hold certificates in PEM form"))
}

#[cfg(not(feature = "tls"))]
pub(crate) fn client(info: ConnectionInfo, ca_file: Option<&Path>) -> Result<Client> {
    if ca_file.is_some() {
        return Err(wrong("`ca_file` needs the feature `tls`"));
    }
    Client::open(info).map_err(|_| wrong("the driver does not take this address"))
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, CONNECT, what)
}

/// With more than one provider of cryptography in the program, rustls takes none by itself and
/// panics; ring is chosen then, unless the program has chosen before.
#[cfg(feature = "tls")]
fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has just done the same.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}
