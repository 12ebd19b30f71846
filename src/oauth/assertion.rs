//! Signs assertions that name the gateway to a token endpoint (RFC 7523, `private_key_jwt`).

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use uuid::Uuid;

/// The life of an assertion, in seconds.
const LIFE: u64 = 60;
const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// A private key.
pub enum Signer {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl Signer {
    /// Reads PKCS #8 in PEM. The error has nothing of the key.
    pub fn parse(pem: &str) -> Result<Self, &'static str> {
        let body = pem.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
        let (body, _) = body.ok_or("it is not PKCS #8 in PEM (`-----BEGIN PRIVATE KEY-----`)")?;
        let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let der = STANDARD.decode(body).map_err(|_| "its PEM cannot be decoded")?;
        if let Ok(key) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der) {
            return Ok(Self::Ec(key));
        }
        if let Ok(key) = Ed25519KeyPair::from_pkcs8(&der) {
            return Ok(Self::Ed(key));
        }
        match RsaKeyPair::from_pkcs8(&der) {
            Ok(key) => Ok(Self::Rsa(Box::new(key))),
            Err(_) => Err("it is neither a P-256, nor an Ed25519, nor an RSA key"),
        }
    }

    /// Returns an assertion that `client` asks `audience`.
    pub fn assertion(
        &self,
        client: &str,
        audience: &str,
        key_id: Option<&str>,
    ) -> Result<String, &'static str> {
        let mut header = json!({"alg": self.algorithm(), "typ": "JWT"});
        if let Some(key_id) = key_id {
            header["kid"] = json!(key_id);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": client, "sub": client, "aud": audience, "jti": Uuid::new_v4().to_string(),
            "iat": now, "exp": now + LIFE,
        });
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let message = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.sign(message.as_bytes())?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (random, failed) = (SystemRandom::new(), "its private key signs nothing");
        match self {
            Self::Ec(key) => Ok(key.sign(&random, message).map_err(|_| failed)?.as_ref().to_vec()),
            Self::Ed(key) => Ok(key.sign(message).as_ref().to_vec()),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                let signed = key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature);
                signed.map_err(|_| failed)?;
                Ok(signature)
            }
        }
    }
}
