//! What `amqps://` trusts.

use std::path::Path;

use lapin::{
    tcp::OwnedTLSConfig,
    uri::{AMQPScheme, AMQPUri},
};
use outbox_core::{Error, ErrorKind, Result};

use crate::error::CONNECT;

/// The driver's form of the settings. Reads the file; no other I/O.
#[cfg(feature = "tls")]
pub(crate) fn config(uri: &AMQPUri, ca_file: Option<&Path>) -> Result<OwnedTLSConfig> {
    let Some(path) = ca_file else {
        return Ok(OwnedTLSConfig::default());
    };
    if uri.scheme != AMQPScheme::AMQPS {
        return Err(wrong("`ca_file` needs an amqps:// URL"));
    }
    let certificates = std::fs::read_to_string(path)
        .map_err(|error| wrong("`ca_file` can't be read").context("reason", error))?;
    let is_pem = certificates.contains("-----BEGIN CERTIFICATE-----")
        && certificates.contains("-----END CERTIFICATE-----");
    if !is_pem {
        return Err(wrong("`ca_file` does not hold certificates in PEM form"));
    }
    Ok(OwnedTLSConfig {
        identity: None,
        cert_chain: Some(certificates),
    })
}

#[cfg(not(feature = "tls"))]
pub(crate) fn config(uri: &AMQPUri, ca_file: Option<&Path>) -> Result<OwnedTLSConfig> {
    if uri.scheme == AMQPScheme::AMQPS {
        return Err(wrong("an amqps:// URL needs TLS, the feature `tls`"));
    }
    if ca_file.is_some() {
        return Err(wrong("`ca_file` needs the feature `tls`"));
    }
    Ok(OwnedTLSConfig::default())
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, CONNECT, what)
}

/// With more than one provider of cryptography in the program, rustls takes none by itself and
/// panics; ring is chosen then, unless the program has chosen before.
#[cfg(feature = "tls")]
pub(crate) fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has just done the same.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) fn install_provider() {}
