//! The provider's keys with their algorithms. The key decides the algorithm: a token can only name
//! one of the key's own.

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::TokenError;
use super::token::TokenHeader;

/// More than any provider has. Each token is compared with all of them.
const KEYS_MAX: usize = 100;
/// Tolerates clocks that differ.
const LEEWAY_S: u64 = 30;

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// The keys that can sign tokens.
pub(super) struct KeySet(Vec<VerificationKey>);

struct VerificationKey {
    id: Option<String>,
    key: DecodingKey,
    /// With the algorithms of this key only.
    validation: Validation,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum KeySetError {
    #[error("the answer is no JWK set (a JSON object with a list `keys`): {0}")]
    NotAKeySet(#[from] serde_json::Error),
    #[error("the JWK set has {0} keys, over {KEYS_MAX}")]
    TooMany(usize),
}

/// Returns the claims that every token must have, whatever its key.
pub(super) fn requirements(issuer: &str, audiences: &[&str]) -> Validation {
    // Replaced by the algorithms of each key.
    let mut validation = Validation::new(Algorithm::ES256);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    validation.set_issuer(&[issuer]);
    validation.set_audience(audiences);
    validation.validate_nbf = true;
    validation.leeway = LEEWAY_S;
    validation
}

impl KeySet {
    /// Parses a JWK set (RFC 7517). Skips keys of other kinds and for other purposes.
    pub(super) fn parse(json: &[u8], requirements: &Validation) -> Result<Self, KeySetError> {
        #[derive(Deserialize)]
        struct Document<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        let document: Document<'_> = serde_json::from_slice(json)?;
        if document.keys.len() > KEYS_MAX {
            return Err(KeySetError::TooMany(document.keys.len()));
        }
        let keys = document.keys.into_iter();
        Ok(Self(keys.filter_map(|key| VerificationKey::parse(key, requirements)).collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the claims of a valid token.
    pub(super) fn check(&self, token: &str, header: &TokenHeader) -> Result<Value, TokenError> {
        let key = self.find(header)?;
        let checked = decode::<Value>(token, &key.key, &key.validation);
        checked.map(|token| token.claims).map_err(|error| reason(&error))
    }

    fn find(&self, header: &TokenHeader) -> Result<&VerificationKey, TokenError> {
        let is_named = |key: &&VerificationKey| header.key_id.is_none() || key.id == header.key_id;
        let mut fitting = self.0.iter().filter(is_named).filter(|key| key.fits(header.algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(key),
            (Some(key), Some(_)) if header.key_id.is_some() => Ok(key),
            // Without an id, only one key may fit.
            (Some(_), Some(_)) => Err(TokenError::UnknownKey),
            (None, _) if self.0.iter().any(|key| is_named(&key)) => Err(TokenError::Algorithm),
            (None, _) => Err(TokenError::UnknownKey),
        }
    }
}

impl VerificationKey {
    fn parse(json: &RawValue, requirements: &Validation) -> Option<Self> {
        let jwk: Jwk = serde_json::from_str(json.get()).ok()?;
        let algorithms = algorithms(&jwk);
        if algorithms.is_empty() {
            return None;
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let validation = Validation { algorithms, ..requirements.clone() };
        Some(Self { id: jwk.common.key_id, key, validation })
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.validation.algorithms.contains(&algorithm)
    }
}

/// Returns the algorithms that a key can verify. None for symmetric keys: whoever verifies could
/// also sign.
fn algorithms(jwk: &Jwk) -> Vec<Algorithm> {
    let common = &jwk.common;
    let for_signatures =
        common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
    let for_checking = common
        .key_operations
        .as_ref()
        .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    if !for_signatures || !for_checking {
        return Vec::new();
    }
    let of_kind: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA,
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            &[Algorithm::EdDSA]
        }
        _ => &[],
    };
    let is_its_own = |algorithm: &Algorithm| {
        common.key_algorithm.is_none_or(|own| own == KeyAlgorithm::from(*algorithm))
    };
    of_kind.iter().copied().filter(is_its_own).collect()
}

fn reason(error: &Error) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYetValid,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::InvalidAlgorithm => TokenError::Algorithm,
        ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
            "exp" => TokenError::Expired,
            "iss" => TokenError::Issuer,
            "aud" => TokenError::Audience,
            _ => TokenError::Malformed,
        },
        _ => TokenError::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const EC: &str = r#""kty":"EC","x":"AQAB","y":"AQAB""#;

    fn set(keys: &[String]) -> KeySet {
        let json = format!(r#"{{"keys":[{}],"more":1}}"#, keys.join(","));
        KeySet::parse(json.as_bytes(), &requirements("i", &["a"])).unwrap()
    }

    fn algorithms_of(key: &str) -> Vec<Algorithm> {
        let keys = set(&[format!("{{{key}}}")]).0;
        keys.into_iter().flat_map(|key| key.validation.algorithms).collect()
    }

    fn found(
        keys: &KeySet,
        algorithm: Algorithm,
        key_id: Option<&str>,
    ) -> Result<usize, TokenError> {
        let header = TokenHeader { algorithm, key_id: key_id.map(str::to_owned) };
        let key = keys.find(&header)?;
        Ok(keys.0.iter().position(|other| std::ptr::eq(key, other)).unwrap())
    }

    #[test]
    fn a_key_is_good_for_the_algorithms_of_its_kind() {
        let rsa = r#""kty":"RSA","n":"AQAB","e":"AQAB""#;
        assert_eq!(algorithms_of(rsa), RSA);
        assert_eq!(algorithms_of(&format!(r#"{rsa},"alg":"PS384""#)), [Algorithm::PS384]);
        assert_eq!(algorithms_of(&format!(r#"{EC},"crv":"P-256""#)), [Algorithm::ES256]);
        assert_eq!(algorithms_of(&format!(r#"{EC},"crv":"P-384""#)), [Algorithm::ES384]);
        let ed = r#""kty":"OKP","crv":"Ed25519","x":"AQAB""#;
        assert_eq!(algorithms_of(ed), [Algorithm::EdDSA]);
        for usage in [r#""use":"sig""#, r#""key_ops":["verify"]"#] {
            assert_eq!(algorithms_of(&format!("{ed},{usage}")), [Algorithm::EdDSA]);
        }
    }

    #[test]
    fn keys_that_cannot_verify_a_signature_are_skipped() {
        for key in [
            "",
            r#""kty":"oct","k":"AQAB""#,
            r#""kty":"oct","k":"AQAB","alg":"HS256""#,
            r#""kty":"RSA","n":"AQAB","e":"AQAB","alg":"HS256""#,
            r#""kty":"RSA","n":"AQAB","e":"AQAB","alg":"RSA-OAEP""#,
            r#""kty":"RSA","n":"AQAB","e":"AQAB","alg":"ES256""#,
            r#""kty":"RSA","n":"AQAB","e":"AQAB","use":"enc""#,
            r#""kty":"RSA","n":"AQAB","e":"AQAB","key_ops":["encrypt"]"#,
            r#""kty":"RSA","n":"AQAB","e":"AQAB","key_ops":[]"#,
            r#""kty":"RSA","n":"not base64","e":"AQAB""#,
            r#""kty":"RSA","n":"AQAB""#,
            r#""kty":"OKP","crv":"X25519","x":"AQAB""#,
            &format!(r#"{EC},"crv":"P-521""#),
            &format!(r#"{EC},"crv":"P-256","alg":"ES384""#),
            &format!(r#"{EC},"crv":"P-256","use":5"#),
        ] {
            assert_eq!(algorithms_of(key), [], "{key}");
        }
    }

    #[test]
    fn a_token_names_its_key_unless_there_is_but_one() {
        let key = |id: &str, curve: &str| format!(r#"{{{EC},"kid":"{id}","crv":"{curve}"}}"#);
        let keys = set(&[key("a", "P-256"), key("b", "P-384"), key("c", "P-384")]);
        assert_eq!(found(&keys, Algorithm::ES384, Some("c")), Ok(2));
        assert_eq!(found(&keys, Algorithm::ES256, None), Ok(0));
        assert_eq!(found(&keys, Algorithm::ES384, None), Err(TokenError::UnknownKey));
        assert_eq!(found(&keys, Algorithm::ES256, Some("d")), Err(TokenError::UnknownKey));
        // The key decides.
        assert_eq!(found(&keys, Algorithm::ES256, Some("b")), Err(TokenError::Algorithm));
        assert_eq!(found(&keys, Algorithm::RS256, None), Err(TokenError::Algorithm));
        let nameless = set(&[format!(r#"{{{EC},"crv":"P-256"}}"#)]);
        assert_eq!(found(&nameless, Algorithm::ES256, None), Ok(0));
        assert_eq!(found(&nameless, Algorithm::ES256, Some("a")), Err(TokenError::UnknownKey));
    }

    #[test]
    fn documents_that_are_no_key_set_are_refused() {
        let error = |json: &str| {
            let set = KeySet::parse(json.as_bytes(), &requirements("i", &["a"]));
            set.err().unwrap().to_string()
        };
        for json in ["", "<html>", "{}", "[]", r#"{"keys":{}}"#, r#"{"keys":[]"#] {
            assert!(error(json).contains("no JWK set"), "{json}");
        }
        assert_eq!(
            error(&json!({"keys": vec![json!({}); 101]}).to_string()),
            "the JWK set has 101 keys, over 100"
        );
    }
}
