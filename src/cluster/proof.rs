//! The proof that a request comes from another replica, and what only that one may read of it.
//!
//! It is a text that is sealed with the keys that replicas have in common, and names the request: for whom, method, path, body
//! and time; it is good once. What lets its caller in (key or token, and the session) travels inside: whoever listens on the way, or has got the
//! address of a replica that is gone, learns nothing that would let it in. Nor can it answer in that one's stead: an answer carries a seal
//! of its own, which only who has opened the proof can make.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Cluster, Peer, PeerRequest};
use crate::common::seal::Purpose;

/// How old, or by another clock how new, a proof may be.
const VALID_FOR: Duration = Duration::from_secs(30);
/// How long one that is taken may go on being good: it may be by a clock that is ahead.
pub(super) const ACCEPTED_FOR: Duration = Duration::from_secs(2 * VALID_FOR.as_secs());
/// The headers that let a caller in.
static SECRET_HEADERS: [HeaderName; 3] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("mcp-session-id"),
];

/// What is sealed.
#[derive(Serialize, Deserialize)]
struct Proof {
    to: String,
    method: String,
    path: String,
    body: [u8; 32],
    /// In milliseconds since 1970.
    at: u64,
    /// Drawn at random.
    number: u64,
    headers: Vec<(String, String)>,
}

/// A proof of which all but the body is in order. Not to be printed: it has what lets a caller in.
pub struct OpenedProof {
    body: [u8; 32],
    number: u64,
    headers: Vec<(String, String)>,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofError {
    /// It is for another replica, which had this address before.
    NotForUs,
    /// It does not come from a replica, or not as it was sent, or not now, or not for the first time.
    Invalid,
}

/// What goes out with a request.
pub(super) struct ProvenRequest {
    /// For [`PROOF`](super::PROOF).
    pub(super) proof: String,
    /// The request's headers without those that are in the proof.
    pub(super) headers: HeaderMap,
    /// What the answer must know.
    number: u64,
}

impl Cluster {
    /// Proves where a request comes from.
    pub(super) fn prove(&self, to: &Peer, request: &PeerRequest) -> ProvenRequest {
        self.prove_at(to, request, now())
    }

    fn prove_at(&self, to: &Peer, request: &PeerRequest, at: u64) -> ProvenRequest {
        let mut plain = request.headers.clone();
        let mut headers = vec![];
        for name in &SECRET_HEADERS {
            // Of two, this replica has gone by the first; with others it would be longer than can be opened.
            let value = request.headers.get(name).and_then(|value| value.to_str().ok());
            headers.extend(value.map(|value| (name.to_string(), value.to_owned())));
            plain.remove(name);
        }
        let number = rand::random();
        let proof = Proof {
            to: to.id.clone(),
            method: request.method.to_string(),
            path: request.path.clone(),
            body: Sha256::digest(&request.body).into(),
            at,
            number,
            headers,
        };
        let proof = serde_json::to_vec(&proof).expect("plain data");
        let proof = self.sealer.seal(Purpose::Replica, b"", &proof);
        ProvenRequest { proof, headers: plain, number }
    }

    /// What an answer says to be known as that of this replica, which has opened the proof.
    pub fn sign(&self, opened: &OpenedProof) -> String {
        self.sealer.seal(
            Purpose::ReplicaAnswer,
            &opened.number.to_le_bytes(),
            self.me.id.as_bytes(),
        )
    }

    /// Whether an answer is by the replica that was asked.
    pub(super) fn is_signed(&self, signature: &str, by: &Peer, proven: &ProvenRequest) -> bool {
        let context = proven.number.to_le_bytes();
        let id = self.sealer.open(Purpose::ReplicaAnswer, &context, signature);
        id.is_some_and(|id| id == by.id.as_bytes())
    }

    /// Looks at a request's proof, before its body is read.
    pub fn verify_proof(
        &self,
        proof: &str,
        method: &Method,
        path: &str,
    ) -> Result<OpenedProof, ProofError> {
        let proof = self.sealer.open(Purpose::Replica, b"", proof).ok_or(ProofError::Invalid)?;
        let proof: Proof = serde_json::from_slice(&proof).map_err(|_| ProofError::Invalid)?;
        if proof.to != self.me.id {
            return Err(ProofError::NotForUs);
        }
        let is_now = u128::from(now().abs_diff(proof.at)) <= VALID_FOR.as_millis();
        if !is_now || proof.method != method.as_str() || proof.path != path {
            return Err(ProofError::Invalid);
        }
        // From here on it is used up, whatever its body is.
        if !self.used_proofs.insert(proof.number) {
            return Err(ProofError::Invalid);
        }
        Ok(OpenedProof { body: proof.body, number: proof.number, headers: proof.headers })
    }
}

impl OpenedProof {
    /// Whether it was made for this body.
    pub fn matches_body(&self, body: &[u8]) -> bool {
        Sha256::digest(body).as_slice() == self.body
    }

    /// Puts what was sealed back among the headers, in the place of whatever else is there.
    pub fn restore_headers(self, headers: &mut HeaderMap) {
        for name in &SECRET_HEADERS {
            headers.remove(name);
        }
        for (name, value) in self.headers {
            let name = name.parse::<HeaderName>().ok();
            if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
                headers.append(name, value);
            }
        }
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "tests/proof.rs"]
mod tests;
