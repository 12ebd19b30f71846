//! A token's header, before the token is verified.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::TokenError;

/// Providers' tokens have one to four KiB.
const TOKEN_LEN_MAX: usize = 8 * 1024;

/// The fields that say how to verify a token. All others are ignored, above all keys and their
/// addresses (`jwk`, `jku`, `x5u`): a forger writes the header too.
pub(super) struct TokenHeader {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    alg: Cow<'a, str>,
    #[serde(borrow)]
    kid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    typ: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "is_there")]
    crit: bool,
}

impl TokenHeader {
    pub(super) fn parse(token: &str) -> Result<Self, TokenError> {
        if token.len() > TOKEN_LEN_MAX || !looks_like_jwt(token) {
            return Err(TokenError::Malformed);
        }
        let encoded = token.split('.').next().unwrap_or_default();
        let json = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| TokenError::Malformed)?;
        let fields: Fields<'_> =
            serde_json::from_slice(&json).map_err(|_| TokenError::Malformed)?;
        // Extensions in `crit` must be understood, and none is.
        if fields.crit || !fields.typ.as_deref().is_none_or(is_access_token) {
            return Err(TokenError::Malformed);
        }
        // `none` cannot be parsed.
        let algorithm: Algorithm = fields.alg.parse().map_err(|_| TokenError::Algorithm)?;
        // Whoever verifies these could also sign.
        if algorithm.family() == AlgorithmFamily::Hmac {
            return Err(TokenError::Algorithm);
        }
        Ok(Self { algorithm, key_id: fields.kid.map(Cow::into_owned) })
    }
}

/// Returns whether a text has the shape of a token: three parts in base64url, separated by dots. No
/// API key has it.
pub fn looks_like_jwt(text: &str) -> bool {
    let is_base64 =
        |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let mut parts = text.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(header), Some(claims), Some(signature), None) => {
            // A token without a signature is recognised too, and then refused.
            let is_full = !header.is_empty() && !claims.is_empty();
            is_full && [header, claims, signature].into_iter().all(is_base64)
        }
        _ => false,
    }
}

/// Refuses other kinds, such as logout messages, which the provider signs with the same keys.
fn is_access_token(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    typ == "jwt" || typ == "at+jwt"
}

fn is_there<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str) -> Result<(Algorithm, Option<String>), TokenError> {
        let token = format!("{}.e30.c2ln", URL_SAFE_NO_PAD.encode(header));
        TokenHeader::parse(&token).map(|header| (header.algorithm, header.key_id))
    }

    #[test]
    fn tokens_are_told_from_keys_by_their_shape() {
        for token in ["e30.e30.c2ln", "e30.e30.", "eyJhbGciOiJub25lIn0.e30.a-_Z09"] {
            assert!(looks_like_jwt(token), "{token}");
        }
        for other in [
            "",
            "tl_abc_def",
            "e30.e30",
            "e30.e30.c2ln.e30",
            "..",
            ".e30.c2ln",
            "e30..c2ln",
            "e30.e3+.c2ln",
            "e30.e30.c2ln=",
            "e30.e30.c2ln ",
            "e30.e30.ä",
        ] {
            assert!(!looks_like_jwt(other), "{other:?}");
        }
    }

    #[test]
    fn a_header_says_algorithm_and_key() {
        let known = |id: &str| Ok((Algorithm::ES256, Some(id.to_owned())));
        assert_eq!(parse(r#"{"alg":"ES256","kid":"a"}"#), known("a"));
        assert_eq!(parse(r#"{"alg":"ES256","kid":"\u0061","x":[{}]}"#), known("a"));
        assert_eq!(parse(r#"{"alg":"EdDSA"}"#), Ok((Algorithm::EdDSA, None)));
        for typ in ["JWT", "jwt", "at+jwt", "application/at+JWT"] {
            let header = format!(r#"{{"alg":"ES256","kid":"a","typ":"{typ}"}}"#);
            assert_eq!(parse(&header), known("a"), "{typ}");
        }
    }

    #[test]
    fn headers_of_other_things_are_refused() {
        for header in [
            "",
            "[]",
            "{}",
            r#"{"alg":5}"#,
            r#"{"alg":"ES256","alg":"ES384"}"#,
            r#"{"alg":"ES256","kid":1}"#,
            r#"{"alg":"ES256","typ":"logout+jwt"}"#,
            r#"{"alg":"ES256","typ":"JWE"}"#,
            r#"{"alg":"ES256","crit":["exp"]}"#,
            r#"{"alg":"ES256","crit":[]}"#,
            r#"{"alg":"ES256","crit":null}"#,
            r#"{"alg":"ES256"}{}"#,
        ] {
            assert_eq!(parse(header), Err(TokenError::Malformed), "{header}");
        }
        for algorithm in ["none", "None", "", "HS256", "HS512", "ES512", "es256", "RSA-OAEP"] {
            let header = format!(r#"{{"alg":"{algorithm}"}}"#);
            assert_eq!(parse(&header), Err(TokenError::Algorithm), "{algorithm}");
        }
    }

    #[test]
    fn a_token_has_at_most_eight_kib() {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
        let token = |len| format!("{header}.{}.c2ln", "a".repeat(len - header.len() - 6));
        assert!(TokenHeader::parse(&token(8192)).is_ok());
        assert_eq!(TokenHeader::parse(&token(8193)).err(), Some(TokenError::Malformed));
    }
}
