//! Seals small texts that go out to clients and come back, such as session tokens. A client can
//! neither read nor alter them, nor use them for another purpose. Tenants' secrets are sealed in
//! the same way, with other keys, before they go to the store.
//!
//! XChaCha20-Poly1305, whose nonces are long enough to be random. A sealed text is base64url of
//! nonce, ciphertext and tag.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

use crate::common::secret::Secret;

/// Bounds sealed texts in bodies; headers are shorter anyway.
const SEALED_LEN_MAX: usize = 64 << 10;
const NONCE_LEN: usize = 24;
const TAG_LEN: usize = 16;
/// A longer text could not be opened again.
pub const PLAIN_LEN_MAX: usize = SEALED_LEN_MAX / 4 * 3 - NONCE_LEN - TAG_LEN;
/// Separates these keys from other uses of the same secret.
const KEY_LABEL: &[u8] = b"trunkline seal 1\0";

/// Seals with the first key and opens with any, so that keys can be replaced while texts sealed by
/// an old one are in use.
pub struct Sealer {
    ciphers: Vec<XChaCha20Poly1305>,
}

/// A text sealed for one purpose cannot be opened for another. The numbers are part of sealed texts
/// that outlive the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Session = 1,
    /// State that a server wants back with the client's next request.
    RequestState = 2,
    TenantSecret = 3,
    /// The proof that a request comes from a replica.
    Replica = 4,
    /// The proof that an answer comes from a replica.
    ReplicaAnswer = 5,
    /// Arguments and answers of calls that are kept.
    KeptCall = 6,
    /// The keys that callbacks are signed with.
    CallbackSecret = 7,
    /// The session of a live page.
    PageSession = 8,
    /// Tokens of a tenant that has connected itself to a server.
    Connection = 9,
    /// A tenant that is about to.
    ConnectState = 10,
    /// The gateway as a client that it has registered itself.
    OAuthClient = 11,
    /// The id of a task.
    Task = 12,
    /// The browser in which a tenant connects itself.
    ConnectBrowser = 13,
    /// The id of a question to the client of a session.
    Question = 20,
    /// A call that goes on between two requests of its client.
    ParkedCall = 21,
}

impl Sealer {
    /// Without keys, uses a random one: sealed texts are then lost with the process.
    pub fn new(keys: &[Secret]) -> Self {
        if keys.is_empty() { Self::random() } else { Self::labelled(KEY_LABEL, keys) }
    }

    /// For texts that outlive the process; needs at least one key. The label separates uses of the
    /// same secret.
    pub fn labelled(label: &[u8], keys: &[Secret]) -> Self {
        assert!(!keys.is_empty(), "what is kept must be sealed with a key that is kept too");
        let cipher = |key: &Secret| {
            let hash = Sha256::new().chain_update(label).chain_update(key.expose());
            XChaCha20Poly1305::new(&hash.finalize())
        };
        Self { ciphers: keys.iter().map(cipher).collect() }
    }

    pub fn random() -> Self {
        let key: [u8; 32] = rand::random();
        Self { ciphers: vec![XChaCha20Poly1305::new(&key.into())] }
    }

    /// Seals at most [`PLAIN_LEN_MAX`] bytes into letters, digits, `-` and `_`. Opening needs the
    /// same context, such as the tenant.
    pub fn seal(&self, purpose: Purpose, context: &[u8], plain: &[u8]) -> String {
        debug_assert!(plain.len() <= PLAIN_LEN_MAX, "{} bytes cannot be opened again", plain.len());
        let nonce: [u8; NONCE_LEN] = rand::random();
        let payload = Payload { msg: plain, aad: &bound(purpose, context) };
        let sealed = self.ciphers[0].encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.expect("fails only beyond 256 GiB");
        URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())
    }

    /// Returns `None` unless the text was sealed by one of the keys, for this purpose and context.
    pub fn open(&self, purpose: Purpose, context: &[u8], sealed: &str) -> Option<Vec<u8>> {
        Some(self.open_by(purpose, context, sealed)?.1)
    }

    /// Returns the index of the key as well: 0 is the key that seals now.
    pub fn open_by(
        &self,
        purpose: Purpose,
        context: &[u8],
        sealed: &str,
    ) -> Option<(usize, Vec<u8>)> {
        if sealed.len() > SEALED_LEN_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let (nonce, aad) = (XNonce::from(*nonce), bound(purpose, context));
        let open = |(key, cipher): (usize, &XChaCha20Poly1305)| {
            Some((key, cipher.decrypt(&nonce, Payload { msg: sealed, aad: &aad }).ok()?))
        };
        self.ciphers.iter().enumerate().find_map(open)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("keys", &self.ciphers.len()).finish_non_exhaustive()
    }
}

/// The purpose is always one byte, so that no two pairs are alike.
fn bound(purpose: Purpose, context: &[u8]) -> Vec<u8> {
    [&[purpose as u8], context].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use Purpose::{RequestState, Session};

    fn sealer(keys: &[&str]) -> Sealer {
        let keys: Vec<_> = keys.iter().map(|key| Secret::new((*key).to_owned())).collect();
        Sealer::new(&keys)
    }

    #[test]
    fn sealed_texts_can_be_opened() {
        let sealer = Sealer::random();
        for plain in [&b""[..], b"x", &[0xff; PLAIN_LEN_MAX]] {
            let sealed = sealer.seal(Session, b"acme", plain);
            assert!(sealed.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
            assert_eq!(sealer.open(Session, b"acme", &sealed).as_deref(), Some(plain));
        }
    }

    #[test]
    fn only_for_the_same_purpose_in_the_same_context_by_the_same_key() {
        let a = sealer(&["a"]);
        let sealed = a.seal(Session, b"acme", b"x");
        assert!(sealer(&["a"]).open(Session, b"acme", &sealed).is_some());
        assert_eq!(a.open(RequestState, b"acme", &sealed), None);
        for other in [&b""[..], b"acm", b"acme2", b"Acme", b"\x01acme"] {
            assert_eq!(a.open(Session, other, &sealed), None);
        }
        for other in [sealer(&["b"]), sealer(&["a "]), Sealer::random(), Sealer::new(&[])] {
            assert_eq!(other.open(Session, b"acme", &sealed), None);
        }
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let (old, new, both) = (sealer(&["old"]), sealer(&["new"]), sealer(&["new", "old"]));
        let by_old = old.seal(Session, b"", b"x");
        let by_both = both.seal(Session, b"", b"x");
        assert!(both.open(Session, b"", &by_old).is_some());
        assert!(both.open(Session, b"", &by_both).is_some());
        assert!(new.open(Session, b"", &by_both).is_some());
        assert!(old.open(Session, b"", &by_both).is_none());
    }

    #[test]
    fn the_key_that_sealed_is_known() {
        let (old, both) = (sealer(&["old"]), sealer(&["new", "old"]));
        let by = |sealed: &str| both.open_by(Session, b"", sealed).map(|(key, _)| key);
        assert_eq!(by(&both.seal(Session, b"", b"x")), Some(0));
        assert_eq!(by(&old.seal(Session, b"", b"x")), Some(1));
    }

    #[test]
    fn the_same_text_under_another_label_is_another_key() {
        let keys = [Secret::new("a".to_owned())];
        let sealed = Sealer::labelled(b"one", &keys).seal(Session, b"", b"x");
        assert!(Sealer::labelled(b"one", &keys).open(Session, b"", &sealed).is_some());
        assert_eq!(Sealer::labelled(b"two", &keys).open(Session, b"", &sealed), None);
        assert_eq!(Sealer::new(&keys).open(Session, b"", &sealed), None);
    }

    #[test]
    fn any_change_is_noticed() {
        let sealer = Sealer::random();
        let sealed = sealer.seal(Session, b"acme", b"a small text");
        let bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let changed = URL_SAFE_NO_PAD.encode(changed);
            assert_eq!(sealer.open(Session, b"acme", &changed), None, "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(sealer.open(Session, b"acme", &sealed[..len]), None, "{len} characters");
        }
        // The text has one spelling only: some decoders ignore its last bits.
        for at in 0..sealed.len() {
            for other in "A_z09".chars().filter(|other| !sealed[at..].starts_with(*other)) {
                let changed = format!("{}{other}{}", &sealed[..at], &sealed[at + 1..]);
                assert_eq!(sealer.open(Session, b"acme", &changed), None, "{changed}");
            }
        }
        for more in ["A", "=", "==", " ", "\n", "é"] {
            assert_eq!(sealer.open(Session, b"acme", &format!("{sealed}{more}")), None);
        }
    }

    #[test]
    fn too_long_texts_are_not_decoded() {
        let sealer = Sealer::random();
        assert_eq!(sealer.open(Session, b"", &"A".repeat(SEALED_LEN_MAX + 1)), None);
        assert_eq!(sealer.open(Session, b"", &"A".repeat(SEALED_LEN_MAX)), None);
    }

    #[test]
    fn the_same_text_is_never_sealed_alike() {
        let sealer = Sealer::random();
        assert_ne!(sealer.seal(Session, b"", b"x"), sealer.seal(Session, b"", b"x"));
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{:?}", sealer(&["hunter2", "a"])), "Sealer { keys: 2, .. }");
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_the_rest_comes_back(
            garbage in any::<String>(),
            plain in any::<Vec<u8>>(),
            context in any::<Vec<u8>>(),
            other in any::<Vec<u8>>(),
        ) {
            let sealer = Sealer::random();
            prop_assert_eq!(sealer.open(Session, &context, &garbage), None);
            let sealed = sealer.seal(RequestState, &context, &plain);
            if other != context {
                prop_assert_eq!(sealer.open(RequestState, &other, &sealed), None);
            }
            prop_assert_eq!(sealer.open(RequestState, &context, &sealed), Some(plain));
        }
    }
}
