//! Signatures as [Standard Webhooks](https://www.standardwebhooks.com) has them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use outbox_core::Result;
use sha2::Sha256;

use super::config::wrong;
use crate::config::Secret;

/// Before a key that is written as base64.
const PREFIX: &str = "whsec_";

/// Signs requests with one key.
#[derive(Clone)]
pub(super) struct Signer(Hmac<Sha256>);

impl Signer {
    /// # Errors
    /// `Configuration`: the secret is empty, or no base64 behind `whsec_`.
    pub(super) fn new(secret: &Secret) -> Result<Self> {
        let of_secret = |what: &'static str| wrong(what).context("setting", "secret");
        let text = secret.expose();
        let key = match text.strip_prefix(PREFIX) {
            Some(encoded) => STANDARD
                .decode(encoded)
                .map_err(|_| of_secret("what stands behind whsec_ is no base64"))?,
            None => text.as_bytes().to_vec(),
        };
        if key.is_empty() {
            return Err(of_secret("the secret is empty"));
        }
        Hmac::new_from_slice(&key)
            .map(Self)
            .map_err(|_| of_secret("the secret can't be a key"))
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(secret: &str) -> String {
        let signer = Signer::new(&Secret::new(secret)).unwrap();
        let body = br#"{"test": 2432232314}"#;
        signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    }

    /// The example that the libraries of Standard Webhooks test with.
    #[test]
    fn the_specifications_example() {
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), expected);
    }

    /// By OpenSSL: `printf … | openssl dgst -sha256 -hmac key -binary | base64`.
    #[test]
    fn a_secret_without_the_prefix_is_the_key_itself() {
        let expected = "v1,xOQ5ZMGlk+goaXQy1+l/u5BfsIGNsXPZC+FmIdwACUo=";
        assert_eq!(sign("a key of text"), expected);
    }

    #[test]
    fn i15_wrong_secrets_are_refused_unseen() {
        for secret in ["", "whsec_", "whsec_s3cret!"] {
            let Err(error) = Signer::new(&Secret::new(secret)) else {
                panic!("{secret} was taken")
            };
            let shown = format!("{error} {error:?}");
            assert!(
                shown.contains("setting") && !shown.contains("s3cret"),
                "{shown}"
            );
        }
    }
}
