//! Proves that a request comes from another replica, and hides its credentials.
//!
//! A proof is sealed with the keys that all replicas share. It names the receiver, method, path,
//! body and time, and is accepted once. The caller's credentials (key or token, and session) travel
//! inside it. So neither an eavesdropper nor whoever has the address of a former replica learns
//! them. Nor can they answer: an answer carries a seal that only a replica that opened the proof
//! can make.

use std::collections::HashSet;
use std::mem;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{Cluster, Peer, PeerRequest};
use crate::common::seal::Purpose;

/// Tolerates clocks that differ by this much in either direction.
const VALID_FOR: Duration = Duration::from_secs(30);
/// How long a proof must be remembered: its clock may be ahead.
pub(super) const ACCEPTED_FOR: Duration = Duration::from_secs(2 * VALID_FOR.as_secs());
/// More than come in one span of remembered proofs. Proofs beyond it are refused.
const PROOFS_MAX: usize = 1 << 20;
/// The caller's credentials.
static SECRET_HEADERS: [HeaderName; 3] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("mcp-session-id"),
];

/// The sealed part.
#[derive(Serialize, Deserialize)]
struct Proof {
    to: String,
    method: String,
    path: String,
    body: [u8; 32],
    /// In milliseconds since 1970.
    at: u64,
    /// Random.
    number: u64,
    headers: Vec<(String, String)>,
}

/// A proof that is valid, except that the body is not compared yet. Has no `Debug`: it contains
/// credentials.
pub struct OpenedProof(Proof);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofError {
    /// Sent to a replica that had this address before.
    NotForUs,
    /// Not sealed by a replica, altered, expired or used before.
    Invalid,
}

pub(super) struct ProvenRequest {
    /// The value of [`PROOF`](super::PROOF).
    pub(super) proof: String,
    /// The headers outside of the proof.
    pub(super) headers: HeaderMap,
    /// Proves the answer.
    number: u64,
}

impl Cluster {
    pub(super) fn prove(&self, to: &Peer, request: &PeerRequest) -> ProvenRequest {
        self.prove_at(to, request, now())
    }

    fn prove_at(&self, to: &Peer, request: &PeerRequest, at: u64) -> ProvenRequest {
        let mut plain = request.headers.clone();
        let mut headers = vec![];
        for name in &SECRET_HEADERS {
            // This replica has used the first value; more could make the proof too long to open.
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

    /// Returns the signature of an answer, by the replica that opened the proof.
    pub fn sign(&self, opened: &OpenedProof) -> String {
        self.sealer.seal(
            Purpose::ReplicaAnswer,
            &opened.0.number.to_le_bytes(),
            self.me.id.as_bytes(),
        )
    }

    /// Returns whether an answer was signed by the replica that was asked.
    pub(super) fn is_signed(&self, signature: &str, by: &Peer, proven: &ProvenRequest) -> bool {
        let context = proven.number.to_le_bytes();
        let id = self.sealer.open(Purpose::ReplicaAnswer, &context, signature);
        id.is_some_and(|id| id == by.id.as_bytes())
    }

    /// Checks a request's proof, before its body is read.
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
        // From here on the proof is used up, whatever the body is.
        if !self.used_proofs.insert(proof.number) {
            return Err(ProofError::Invalid);
        }
        Ok(OpenedProof(proof))
    }
}

impl OpenedProof {
    pub fn matches_body(&self, body: &[u8]) -> bool {
        Sha256::digest(body).as_slice() == self.0.body
    }

    /// Replaces the credentials among the headers by those in the proof.
    pub fn restore_headers(self, headers: &mut HeaderMap) {
        for name in &SECRET_HEADERS {
            headers.remove(name);
        }
        for (name, value) in self.0.headers {
            let name = name.parse::<HeaderName>().ok();
            if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
                headers.append(name, value);
            }
        }
    }
}

/// Accepted proofs of the last full span and of the current one, so that none is accepted twice.
pub(super) struct UsedProofs {
    span: Duration,
    spans: Mutex<Spans>,
}

struct Spans {
    began: Instant,
    now: HashSet<u64>,
    before: HashSet<u64>,
}

impl UsedProofs {
    /// Each proof is remembered for at least `span`, and at most twice that.
    pub(super) fn new(span: Duration) -> Self {
        let spans = Spans { began: Instant::now(), now: HashSet::new(), before: HashSet::new() };
        Self { span, spans: Mutex::new(spans) }
    }

    /// Remembers a proof by its random number. Returns whether it is new and fits.
    pub(super) fn insert(&self, number: u64) -> bool {
        let mut spans = self.spans.lock();
        if spans.began.elapsed() >= self.span {
            spans.began = Instant::now();
            spans.before = mem::take(&mut spans.now);
        }
        !spans.before.contains(&number) && spans.now.len() < PROOFS_MAX && spans.now.insert(number)
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
