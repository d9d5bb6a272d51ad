//! What it means when a request got no answer.

use std::{error::Error as StdError, io, iter::successors};

use outbox_core::{Error, ErrorKind, Outcome};

/// The operation that errors of sending name.
pub(super) const PUBLISH: &str = "publish by HTTP";
/// The operation that errors of connecting name.
pub(super) const CONNECT: &str = "connect by HTTP";

type Cause<'a> = &'a (dyn StdError + 'static);

/// Without a connection nothing was sent; behind it the request may have arrived, whole or not.
pub(super) fn of_request(error: &reqwest::Error) -> Outcome {
    if error.is_connect() {
        return Outcome::Failed(connecting(error));
    }
    Outcome::Unknown(Error::new(
        ErrorKind::ConnectionLost,
        PUBLISH,
        innermost(error),
    ))
}

/// No connection came about.
pub(super) fn connecting(error: Cause<'_>) -> Error {
    let kind = causes(error)
        .find_map(kind_of)
        .unwrap_or(ErrorKind::Unavailable);
    Error::new(kind, CONNECT, innermost(error))
}

/// No answer in time.
pub(super) fn timeout(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "no answer in time")
}

/// The error and what is below it. An I/O error hides what it was made of from the usual walk.
fn causes(error: Cause<'_>) -> impl Iterator<Item = Cause<'_>> {
    successors(Some(error), |&error| {
        let io = error.downcast_ref::<io::Error>();
        match io.and_then(io::Error::get_ref) {
            Some(hidden) => Some(hidden as Cause<'_>),
            None => error.source(),
        }
    })
}

/// The driver's own words above it name the URL.
fn innermost(error: Cause<'_>) -> String {
    causes(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn kind_of(error: Cause<'_>) -> Option<ErrorKind> {
    #[cfg(feature = "tls")]
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        use rustls::Error as Tls;
        return Some(match error {
            Tls::InvalidCertificate(_) | Tls::AlertReceived(_) | Tls::NoCertificatesPresented => {
                ErrorKind::Unauthenticated
            }
            _ => ErrorKind::Protocol,
        });
    }
    let is_late = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    let is_timeout = error
        .downcast_ref::<reqwest::Error>()
        .is_some_and(reqwest::Error::is_timeout)
        || error.downcast_ref::<io::Error>().is_some_and(is_late);
    is_timeout.then_some(ErrorKind::Timeout)
}

#[cfg(test)]
mod tests {
    use outbox_core::Scope;

    use super::*;

    #[test]
    fn failures_to_connect_are_told_apart() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let late = io::Error::from(io::ErrorKind::TimedOut);
        let mut table = vec![
            (refused, ErrorKind::Unavailable),
            (late, ErrorKind::Timeout),
        ];
        #[cfg(feature = "tls")]
        {
            let certificate = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
            let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
            table.push((io::Error::other(certificate), ErrorKind::Unauthenticated));
            table.push((io::Error::other(plain), ErrorKind::Protocol));
        }
        for (error, kind) in table {
            let shown = error.to_string();
            let error = connecting(&io::Error::other(error));
            assert_eq!(error.kind(), kind, "{shown}");
            assert_eq!(error.failure_scope(), Scope::Destination);
            assert!(error.to_string().contains(&shown), "{error}");
        }
    }
}
