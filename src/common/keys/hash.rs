//! The HMAC-SHA256 of a key, for the store. Neither the key nor another hash can be made from it
//! without the hasher's own key.

use std::fmt;
use std::hash::{self, Hash};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::ApiKey;
use crate::common::secret::Secret;

const LEN: usize = 32;
/// Separates these hashes from other uses of the same secret.
const LABEL: &[u8] = b"trunkline key 1\0";

#[derive(Clone)]
pub struct Hasher(Hmac<Sha256>);

/// Compared in constant time.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; LEN]);

impl Hasher {
    pub fn new(key: &Secret) -> Self {
        let mac = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes());
        // Once, not for every key.
        Self(mac.expect("takes a key of any length").chain_update(LABEL))
    }

    pub fn hash(&self, key: &ApiKey) -> KeyHash {
        let mac = self.0.clone().chain_update(key.expose());
        KeyHash(mac.finalize().into_bytes().into())
    }
}

impl KeyHash {
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the output of [`KeyHash::to_hex`].
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 2 * LEN {
            return None;
        }
        let digit = |byte: u8| Some(char::from(byte).to_digit(16)? as u8);
        let mut hash = [0; LEN];
        for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyHash {}

impl Hash for KeyHash {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hash]")
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hasher]")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hasher(key: &str) -> Hasher {
        Hasher::new(&Secret::new(key.to_owned()))
    }

    #[test]
    fn a_hash_depends_on_key_and_hasher() {
        let (one, two) = (ApiKey::generate(), ApiKey::generate());
        let hash = hasher("a").hash(&one);
        assert_eq!(hash, hasher("a").hash(&one));
        assert_ne!(hash, hasher("a").hash(&two));
        assert_ne!(hash, hasher("b").hash(&one));
    }

    /// Stored hashes must stay valid over versions.
    #[test]
    fn an_old_hash_is_still_the_hash() {
        let text = "tl_0123456789AB_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg4caWVg";
        let hash = hasher("0123456789abcdef0123456789abcdef").hash(&ApiKey::parse(text).unwrap());
        assert_eq!(
            hash.to_hex(),
            "4e872f3917536c97e2f445b10c4cfea92b64cabaf26f1234a24073d0864c0d15"
        );
    }

    #[test]
    fn a_hash_is_written_and_read() {
        let hash = hasher("a").hash(&ApiKey::generate());
        assert_eq!(KeyHash::from_hex(&hash.to_hex()), Some(hash));
        for bad in ["", "00", &"g".repeat(64), &"0".repeat(63), &"ü".repeat(32)] {
            assert!(KeyHash::from_hex(bad).is_none(), "{bad} was accepted");
        }
        assert_eq!(format!("{hash:?}"), "[hash]");
    }

    #[derive(Clone, Debug)]
    enum Slip {
        Replace(usize, u8),
        Swap(usize, usize),
        Remove(usize),
        Insert(usize, u8),
    }

    fn slip() -> impl Strategy<Value = Slip> {
        let byte = prop_oneof![b'0'..=b'9', b'A'..=b'Z', b'a'..=b'z', Just(b'_'), Just(b' ')];
        prop_oneof![
            (0..65_usize, byte.clone()).prop_map(|(at, byte)| Slip::Replace(at, byte)),
            (0..65_usize, 0..65_usize).prop_map(|(a, b)| Slip::Swap(a, b)),
            (0..65_usize).prop_map(Slip::Remove),
            (0..65_usize, byte).prop_map(|(at, byte)| Slip::Insert(at, byte)),
        ]
    }

    fn with_slips(text: &str, slips: &[Slip]) -> String {
        let mut bytes = text.as_bytes().to_vec();
        for slip in slips {
            let len = bytes.len();
            match *slip {
                Slip::Replace(at, byte) => bytes[at % len] = byte,
                Slip::Swap(a, b) => bytes.swap(a % len, b % len),
                Slip::Remove(at) => drop(bytes.remove(at % len)),
                Slip::Insert(at, byte) => bytes.insert(at % len, byte),
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    proptest! {
        #[test]
        fn a_changed_key_never_verifies(slips in prop::collection::vec(slip(), 1..8)) {
            let hasher = hasher("a");
            let key = ApiKey::generate();
            let text = with_slips(key.expose(), &slips);
            let is_same = |other| hasher.hash(&other) == hasher.hash(&key);
            let verifies = ApiKey::parse(&text).is_some_and(is_same);
            prop_assert_eq!(verifies, text == key.expose());
        }

        /// A forger can work out a checksum.
        #[test]
        fn a_right_checksum_does_not_help(at in 3..59_usize, byte in b'0'..=b'9') {
            prop_assume!(at != 15);
            let hasher = hasher("a");
            let key = ApiKey::generate();
            let mut text = with_slips(&key.expose()[..59], &[Slip::Replace(at, byte)]);
            let checksum = super::super::checksum(text.as_bytes());
            text += std::str::from_utf8(&checksum).unwrap();
            let forged = ApiKey::parse(&text).expect("its form is right");
            prop_assert_eq!(hasher.hash(&forged) == hasher.hash(&key), text == key.expose());
        }

        #[test]
        fn one_wrong_character_is_no_key(at in 0..65_usize, byte in b'!'..=b'~') {
            let key = ApiKey::generate();
            let text = with_slips(key.expose(), &[Slip::Replace(at, byte)]);
            prop_assert_eq!(ApiKey::parse(&text).is_some(), text == key.expose());
        }
    }
}
