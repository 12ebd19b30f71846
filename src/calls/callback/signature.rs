//! Signatures of callbacks, as Standard Webhooks has them: HMAC-SHA256 over id, time and body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A tenant's key: 24 to 64 random bytes.
pub struct SigningKey(Vec<u8>);

impl SigningKey {
    const PREFIX: &str = "whsec_";

    pub fn generate() -> Self {
        Self(rand::random::<[u8; 32]>().into())
    }

    /// Reads the text that the receiver has, too.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.strip_prefix(Self::PREFIX)?).ok()?;
        (24..=64).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// Returns the text for the receiver.
    pub fn expose(&self) -> String {
        format!("{}{}", Self::PREFIX, STANDARD.encode(&self.0))
    }

    fn sign(&self, id: &str, timestamp_s: u64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length is a key");
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Returns the value of `webhook-signature`: one signature for each key, so that a receiver with
/// either key accepts the callback while the key is changed.
pub fn signatures(keys: &[SigningKey], id: &str, timestamp_s: u64, body: &[u8]) -> String {
    let signatures: Vec<String> = keys.iter().map(|key| key.sign(id, timestamp_s, body)).collect();
    signatures.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard() {
        let key = SigningKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let value = signatures(&[key], id, 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(value, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_keys_make_two_signatures_that_depend_on_all_parts() {
        let keys = [SigningKey(vec![1; 32]), SigningKey(vec![2; 32])];
        let value = signatures(&keys, "id", 5, b"body");
        let (first, second) = value.split_once(' ').unwrap();
        assert!(first.starts_with("v1,") && second.starts_with("v1,") && first != second);
        for other in [
            signatures(&keys[..1], "ie", 5, b"body"),
            signatures(&keys[..1], "id", 6, b"body"),
            signatures(&keys[..1], "id", 5, b"bodx"),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn a_key_can_be_written_and_read() {
        let key = SigningKey::generate();
        assert_eq!(SigningKey::parse(&key.expose()).unwrap().0, key.0);
        assert!(SigningKey::parse("whsec_AAAA").is_none());
        assert!(SigningKey::parse(&key.expose()[1..]).is_none());
    }
}
