//! API keys: `tl_<id>_<secret><checksum>`, in letters and digits. The id names a key in lists and
//! logs. The secret is 256 random bits; the store has only its hash. The checksum tells a typing
//! mistake from an unknown key without a query.

mod hash;

use rand::RngExt;
use rand::distr::Alphanumeric;

pub use self::hash::{Hasher, KeyHash};
use super::ids::formatted;

const PREFIX: &[u8] = b"tl_";
const ID_LEN: usize = 12;
/// 62^43 is a little more than 2^256.
pub const SECRET_LEN: usize = 43;
/// 62^6 is more than 2^32.
const CHECKSUM_LEN: usize = 6;
const ID_AT: usize = PREFIX.len();
const SECRET_AT: usize = ID_AT + ID_LEN + 1;
const CHECKSUM_AT: usize = SECRET_AT + SECRET_LEN;
const LEN: usize = CHECKSUM_AT + CHECKSUM_LEN;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const NAME_LEN_MAX: usize = 100;

/// Names one key. Not secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; ID_LEN]);

/// A whole key with its secret. Prints its id only.
#[derive(Clone)]
pub struct ApiKey([u8; LEN]);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` cannot be the name of a key: use 1 to {NAME_LEN_MAX} characters, no control characters"
)]
pub struct InvalidName(String);

impl KeyId {
    pub fn parse(text: &str) -> Option<Self> {
        let id: [u8; ID_LEN] = text.as_bytes().try_into().ok()?;
        id.iter().all(u8::is_ascii_alphanumeric).then_some(Self(id))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("letters and digits")
    }
}

impl ApiKey {
    pub fn generate() -> Self {
        let mut random = rand::rng().sample_iter(Alphanumeric);
        let mut text = [b'_'; LEN];
        text[..ID_AT].copy_from_slice(PREFIX);
        for at in (ID_AT..ID_AT + ID_LEN).chain(SECRET_AT..CHECKSUM_AT) {
            text[at] = random.next().expect("it never ends");
        }
        let checksum = checksum(&text[..CHECKSUM_AT]);
        text[CHECKSUM_AT..].copy_from_slice(&checksum);
        Self(text)
    }

    /// Returns `None` if the form or the checksum is wrong.
    pub fn parse(text: &str) -> Option<Self> {
        let text: [u8; LEN] = text.as_bytes().try_into().ok()?;
        let fits = text.starts_with(PREFIX)
            && text[ID_AT..SECRET_AT - 1].iter().all(u8::is_ascii_alphanumeric)
            && text[SECRET_AT - 1] == b'_'
            && text[SECRET_AT..CHECKSUM_AT].iter().all(u8::is_ascii_alphanumeric)
            && text[CHECKSUM_AT..] == checksum(&text[..CHECKSUM_AT]);
        fits.then_some(Self(text))
    }

    pub fn id(&self) -> KeyId {
        KeyId(self.0[ID_AT..ID_AT + ID_LEN].try_into().expect("as long as an id"))
    }

    /// Returns the whole key, to be shown once to its holder.
    pub fn expose(&self) -> &str {
        std::str::from_utf8(&self.0).expect("letters, digits and `_`")
    }
}

/// Parses the name that an operator gives a key.
pub fn parse_name(text: &str) -> Result<String, InvalidName> {
    let len = text.chars().count();
    if len == 0 || len > NAME_LEN_MAX || text.contains(char::is_control) {
        return Err(InvalidName(text.escape_debug().collect()));
    }
    Ok(text.to_owned())
}

/// CRC32 in digits of base 62, the most significant first.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut rest = crc32fast::hash(bytes);
    let mut digits = [0; CHECKSUM_LEN];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    digits
}

formatted!(KeyId, id => id.as_str());
formatted!(ApiKey, key => format_args!("tl_{}_…", key.id()));

#[cfg(test)]
mod tests {
    use super::*;

    /// Issued keys must stay valid: id, secret and checksum keep their positions.
    #[test]
    fn an_old_key_is_still_a_key() {
        let text = "tl_0123456789AB_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg4caWVg";
        let checked =
            ApiKey::parse(text).map(|key| (key.id().to_string(), key.expose().to_owned()));
        assert_eq!(checked, Some(("0123456789AB".to_owned(), text.to_owned())));
    }

    #[test]
    fn new_keys_are_read_back_and_differ() {
        let keys: Vec<ApiKey> = (0..100).map(|_| ApiKey::generate()).collect();
        for key in &keys {
            let read = ApiKey::parse(key.expose()).unwrap();
            assert_eq!((read.expose(), read.id()), (key.expose(), key.id()));
            assert_eq!(KeyId::parse(key.id().as_str()), Some(key.id()));
        }
        let ids: std::collections::HashSet<KeyId> = keys.iter().map(ApiKey::id).collect();
        assert_eq!(ids.len(), keys.len());
    }

    #[test]
    fn a_printed_key_shows_its_id_alone() {
        let key = ApiKey::generate();
        let secret = &key.expose()[SECRET_AT..];
        let printed = format!("{key} {key:?}");
        assert!(printed.contains(key.id().as_str()), "{printed}");
        assert!(!printed.contains(&secret[..4]), "{printed}");
    }

    #[test]
    fn other_forms_are_refused() {
        let key = ApiKey::generate();
        let text = key.expose();
        let upper = text.to_uppercase();
        let in_the_middle = text.replacen("tl_", "tl-", 1);
        for bad in ["", "tl_", &text[1..], &text[..64], &format!("{text}0"), &upper, &in_the_middle]
        {
            assert!(ApiKey::parse(bad).is_none(), "{bad} was accepted");
        }
        for bad in ["", "0123456789A", "0123456789ABC", "0123456789A_", "0123456789Aü"] {
            assert!(KeyId::parse(bad).is_none(), "{bad} was accepted");
        }
    }

    #[test]
    fn a_name_is_short_and_plain() {
        assert_eq!(parse_name("ci runner ü"), Ok("ci runner ü".to_owned()));
        for bad in ["", "a\nb", "\u{1b}[31m", &"x".repeat(101)] {
            assert!(parse_name(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
