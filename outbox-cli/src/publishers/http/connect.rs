//! The client, and a connection that sends nothing.

use std::time::Duration;

use outbox_core::{Error, ErrorKind, Result};
use reqwest::{Client, Url, redirect, retry};
use tokio::{net::TcpStream, time::timeout};

use super::{
    config::{HttpConfig, wrong},
    failure::{self, CONNECT},
};

/// Servers close idle connections, many of them after 5 s, and a request that meets the closing is
/// in doubt: connections are closed here before that.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Makes clients and plain connections to one server.
pub(super) struct Connector {
    pub(super) client: Client,
    host: String,
    port: u16,
    connect_timeout: Duration,
    #[cfg(feature = "tls")]
    tls: Option<tokio_rustls::TlsConnector>,
}

impl Connector {
    /// Reads `ca_file`, or the system's certificates; no other I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub(super) fn new(config: &HttpConfig, url: &Url) -> Result<Self> {
        let is_tls = url.scheme() == "https";
        if config.ca_file.is_some() && !is_tls {
            return Err(wrong("it needs an https:// URL").context("setting", "ca_file"));
        }
        let builder = Client::builder()
            .user_agent(concat!("outbox/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            // The relay repeats, and knows that it does.
            .retry(retry::never())
            .no_proxy()
            .referer(false)
            .connect_timeout(config.connect_timeout)
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(config.requests_in_flight_max);
        #[cfg(feature = "tls")]
        let (builder, tls) = {
            let tls = tls::client(is_tls, config.ca_file.as_deref())?;
            let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(tls.clone()));
            (
                builder.tls_backend_preconfigured(tls),
                is_tls.then_some(connector),
            )
        };
        let client = builder
            .build()
            .map_err(|_| Error::new(ErrorKind::Internal, CONNECT, "the client can't be made"))?;
        Ok(Self {
            client,
            // An IPv6 address stands in brackets in a URL only.
            host: url
                .host_str()
                .unwrap_or_default()
                .trim_matches(['[', ']'])
                .to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            connect_timeout: config.connect_timeout,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// Connects, TLS included, sends no request, and closes.
    pub(super) async fn check(&self) -> Result<()> {
        timeout(self.connect_timeout, self.connect())
            .await
            .unwrap_or_else(|_| Err(failure::timeout(CONNECT)))
    }

    async fn connect(&self) -> Result<()> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| failure::connecting(&error))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let name = rustls::pki_types::ServerName::try_from(self.host.clone())
                .map_err(|error| failure::connecting(&error))?;
            tls.connect(name, stream)
                .await
                .map_err(|error| failure::connecting(&error))?;
            return Ok(());
        }
        drop(stream);
        Ok(())
    }
}

#[cfg(feature = "tls")]
mod tls {
    use std::{path::Path, sync::Arc};

    use outbox_core::Result;
    use rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject as _},
    };

    use super::wrong;

    /// TLS on ring, whatever provider the process may have chosen. Without need of it nothing is
    /// trusted, and nothing is read.
    pub(super) fn client(is_used: bool, ca_file: Option<&Path>) -> Result<ClientConfig> {
        let roots = match ca_file {
            Some(path) => of_file(path)?,
            None if is_used => of_system()?,
            None => RootCertStore::empty(),
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("TLS can't be set up").source(error))?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }

    fn of_file(path: &Path) -> Result<RootCertStore> {
        let of_file = |what: &'static str| wrong(what).context("setting", "ca_file");
        let bytes = std::fs::read(path)
            .map_err(|error| of_file("it can't be read").context("reason", error))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            let added = certificate.ok().and_then(|found| roots.add(found).ok());
            added.ok_or_else(|| of_file("it does not hold certificates in PEM form"))?;
        }
        if roots.is_empty() {
            return Err(of_file("it does not hold certificates in PEM form"));
        }
        Ok(roots)
    }

    fn of_system() -> Result<RootCertStore> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(wrong(
                "the system has no certificates to trust: install them (package ca-certificates), \
                 or set `ca_file`",
            ));
        }
        Ok(roots)
    }
}
