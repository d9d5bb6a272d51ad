//! The settings of the publisher, and what its URL says.

use std::{path::PathBuf, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{Encoding, Error, ErrorKind, Result, setting::DURATION_MAX};
use percent_encoding::percent_decode_str;
use reqwest::{Url, header::HeaderValue};

use crate::config::Secret;

/// Each request in flight has a connection of its own.
const IN_FLIGHT_MAX: usize = 1024;

/// Settings of [`HttpPublisher`](super::publisher::HttpPublisher).
#[derive(Debug)]
pub(super) struct HttpConfig {
    /// `http[s]://[user:password@]host[:port]/path`
    pub(super) url: Secret,
    /// Certificates (PEM) to trust for `https://`, instead of the system's.
    pub(super) ca_file: Option<PathBuf>,
    /// The longest one publish call may take. The relay renews its leases meanwhile.
    pub(super) publish_timeout: Duration,
    /// The longest that reaching the server may take, TLS included: a dead address must not eat the
    /// whole of `publish_timeout`.
    pub(super) connect_timeout: Duration,
    /// How many events of one call are on their way at the same time.
    pub(super) requests_in_flight_max: usize,
    pub(super) encoding: Encoding,
    /// Signs every request.
    pub(super) secret: Option<Secret>,
}

/// Where requests go.
pub(super) struct Target {
    /// Without user and password.
    pub(super) url: Url,
    /// Basic authentication.
    pub(super) authorization: Option<HeaderValue>,
    /// What must not be shown, should the server repeat it.
    pub(super) secrets: Vec<String>,
}

impl HttpConfig {
    pub(super) fn new(url: Secret) -> Self {
        Self {
            url,
            ca_file: None,
            publish_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            requests_in_flight_max: 16,
            encoding: Encoding::Plain,
            secret: None,
        }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub(super) fn validate(&self) -> Result<()> {
        self.encoding.validate()?;
        for (setting, time) in [
            ("publish_timeout", self.publish_timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if time.is_zero() || time > DURATION_MAX {
                let what = "the setting must be more than zero and at most 365 days";
                return Err(wrong(what).context("setting", setting));
            }
        }
        if !(1..=IN_FLIGHT_MAX).contains(&self.requests_in_flight_max) {
            let what = "the setting must be from 1 to 1024";
            return Err(wrong(what).context("setting", "requests_in_flight_max"));
        }
        Ok(())
    }

    /// Reads the URL.
    ///
    /// # Errors
    /// `Configuration`, with no part of the URL: any of it may be a secret.
    pub(super) fn target(&self) -> Result<Target> {
        let of_url = |what: &'static str| wrong(what).context("setting", "url");
        let form = "the URL has not the form http[s]://host[:port]/path, with user:password@ before the host";
        let mut url = Url::parse(self.url.expose()).map_err(|_| of_url(form))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(of_url(form));
        }
        if cfg!(not(feature = "tls")) && url.scheme() == "https" {
            return Err(of_url("https:// needs the feature `tls`"));
        }
        let mut target = Target {
            url: url.clone(),
            authorization: None,
            secrets: vec![],
        };
        if !url.username().is_empty() || url.password().is_some() {
            let decoded = |text: &str| {
                let bytes = percent_decode_str(text).decode_utf8();
                bytes
                    .map(std::borrow::Cow::into_owned)
                    .map_err(|_| of_url(form))
            };
            let user = decoded(url.username())?;
            let encoded = url.password().unwrap_or_default().to_owned();
            let password = decoded(&encoded)?;
            let both = STANDARD.encode(format!("{user}:{password}"));
            let mut header =
                HeaderValue::try_from(format!("Basic {both}")).map_err(|_| of_url(form))?;
            header.set_sensitive(true);
            target.authorization = Some(header);
            target.secrets = vec![both, password, encoded];
            // Neither can fail for a URL with a host.
            let _ = (url.set_username(""), url.set_password(None));
        }
        url.set_fragment(None);
        target.secrets.extend(url.query().map(ToOwned::to_owned));
        target.secrets.retain(|secret| !secret.is_empty());
        target.url = url;
        Ok(target)
    }
}

pub(super) fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read settings of http", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_become_a_header_and_leave_the_url() {
        let url = Secret::new("http://me:p%40ss@h:81/in?k=v#f");
        let target = HttpConfig::new(url).target().unwrap();
        assert_eq!(target.url.as_str(), "http://h:81/in?k=v");
        let header = target.authorization.unwrap();
        assert!(header.is_sensitive());
        // The example of `printf me:p@ss | base64`.
        assert_eq!(header, "Basic bWU6cEBzcw==");
        let plain = HttpConfig::new(Secret::new("http://h")).target().unwrap();
        assert!(plain.authorization.is_none() && plain.secrets.is_empty());
    }

    #[test]
    fn bounds_are_refused_by_name() {
        type Change = fn(&mut HttpConfig);
        let changes: [(&str, Change); 5] = [
            ("publish_timeout", |c| c.publish_timeout = Duration::ZERO),
            ("publish_timeout", |c| c.publish_timeout = Duration::MAX),
            ("connect_timeout", |c| c.connect_timeout = Duration::ZERO),
            ("requests_in_flight_max", |c| c.requests_in_flight_max = 0),
            ("requests_in_flight_max", |c| {
                c.requests_in_flight_max = 1025;
            }),
        ];
        for (name, change) in changes {
            let mut config = HttpConfig::new(Secret::new("http://h"));
            config.validate().unwrap();
            change(&mut config);
            let error = config.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    /// Case creds-in-log.
    #[test]
    fn i15_no_wrong_url_is_shown() {
        for url in [
            "ftp://user:p%40ss@localhost/ord%21",
            "http://user:p@ss:w/ord%21@localhost:80port",
            "https://:p%40ss@localhost:99999",
            "http://user:p%40ss%ff@localhost/ord%21",
            "p@ss:w/ord%21",
            "http://",
            "",
        ] {
            let config = HttpConfig::new(Secret::new(url));
            let Err(error) = config.target() else {
                panic!("{url} was taken")
            };
            let shown = format!("{config:?} {error} {error:?}");
            for secret in ["p@ss", "p%40ss", "ord%21", "ord!"] {
                assert!(!shown.contains(secret), "{secret} in {shown}");
            }
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_tls_url_needs_the_feature() {
        let target = HttpConfig::new(Secret::new("https://localhost")).target();
        assert!(target.err().unwrap().to_string().contains("feature `tls`"));
    }
}
