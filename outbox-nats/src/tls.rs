//! The driver's options for TLS.

use std::path::Path;

use async_nats::ConnectOptions;
use outbox_core::{Error, ErrorKind, Result};

use crate::error::CONNECT;

/// Whether the file holds certificates to trust. Reads it; no other I/O.
#[cfg(feature = "tls")]
pub(crate) fn check(ca_file: Option<&Path>) -> Result<()> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};

    install_provider();
    let Some(path) = ca_file else { return Ok(()) };
    let text = std::fs::read(path)
        .map_err(|error| wrong("`ca_file` can't be read").context("reason", error))?;
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(()),
        _ => Err(wrong("`ca_file` does not hold certificates in PEM form")),
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) fn check(ca_file: Option<&Path>) -> Result<()> {
    match ca_file {
        Some(_) => Err(wrong("`ca_file` needs the feature `tls`")),
        None => Ok(()),
    }
}

/// The options with the certificates to trust; the driver takes the system's by itself.
pub(crate) fn configured(options: ConnectOptions, ca_file: Option<&Path>) -> ConnectOptions {
    match ca_file {
        Some(path) => options.add_root_certificates(path.to_owned()),
        None => options,
    }
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
