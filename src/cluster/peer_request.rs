//! Requests to other replicas.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use reqwest::{Method, Response, StatusCode};
use tokio::time::Instant;

use super::{Cluster, Peer};
use crate::common::error_chain::error_chain;

/// Carries the proof of a request.
pub static PROOF: HeaderName = HeaderName::from_static("trunkline-replica-proof");
/// Shows, in an answer, that the replica has opened the proof.
pub static REPLICA: HeaderName = HeaderName::from_static("trunkline-replica");
/// Names, in an answer, the replica that refused the proof.
pub static REFUSED_BY: HeaderName = HeaderName::from_static("trunkline-replica-refused");
/// Applies to each replica.
const REFUSAL_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Headers that belong to one connection, or are set for each.
static CONNECTION_HEADERS: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HOST,
    CONTENT_LENGTH,
    EXPECT,
];

/// A request as received. Has no `Debug`: it contains credentials.
#[derive(Clone)]
pub struct PeerRequest {
    pub method: Method,
    /// Without a query.
    pub path: String,
    /// Without those that belong to the connection.
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub enum PeerSendError {
    /// The replica has not seen the request.
    #[error("the replica is gone: {0}")]
    Gone(String),
    /// The replica has not accepted the request.
    #[error(
        "the replica refuses the proof: `session_keys` must be the same in all replicas, and their \
         clocks be right"
    )]
    Refused,
    /// The replica may have seen the request.
    #[error("the replica broke off: {0}")]
    Broken(String),
}

impl Cluster {
    /// Sends a request to another replica, and waits for the head of its answer. The caller sets
    /// the timeout.
    pub async fn send(&self, to: &Peer, request: &PeerRequest) -> Result<Response, PeerSendError> {
        let mut proven = self.prove(to, request);
        let headers = std::mem::take(&mut proven.headers);
        let url = format!("http://{}{}", to.address, request.path);
        let outgoing = self.http.request(request.method.clone(), url).headers(headers);
        let outgoing = outgoing.header(&PROOF, &proven.proof).body(request.body.clone());
        let response = outgoing.send().await.map_err(PeerSendError::of)?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        // Anything else at this address cannot have opened the proof.
        if header(&REPLICA).is_some_and(|signature| self.is_signed(signature, to, &proven)) {
            return Ok(response);
        }
        let status = response.status();
        if status == StatusCode::FORBIDDEN && header(&REFUSED_BY) == Some(&to.id) {
            self.refusals.log(to);
            return Err(PeerSendError::Refused);
        }
        Err(PeerSendError::Gone(format!("its address answers with {}", status.as_u16())))
    }
}

/// When each replica was last logged to refuse this one's requests.
#[derive(Default)]
pub(super) struct RefusalLog(Mutex<HashMap<String, Instant>>);

impl RefusalLog {
    /// Logs a refusal, at most once in [`REFUSAL_LOGGED_EVERY`]. Returns whether it did.
    fn log(&self, by: &Peer) -> bool {
        let mut logged = self.0.lock();
        logged.retain(|_, at| at.elapsed() < REFUSAL_LOGGED_EVERY);
        if logged.contains_key(&by.id) {
            return false;
        }
        logged.insert(by.id.clone(), Instant::now());
        drop(logged);
        tracing::warn!(
            replica = %by.address,
            "a replica refuses this one's requests: `session_keys` must be the same in all, \
             and their clocks be right"
        );
        true
    }
}

impl PeerSendError {
    fn of(error: reqwest::Error) -> Self {
        let (is_connect, error) = (error.is_connect() || error.is_builder(), error.without_url());
        let text = error_chain(&error);
        if is_connect { Self::Gone(text) } else { Self::Broken(text) }
    }
}

/// Returns the headers that belong neither to the connection nor to the link between replicas.
pub fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<_> = named.flat_map(|value| value.split(',').map(str::trim)).collect();
    let is_passed_on = |name: &HeaderName| {
        !CONNECTION_HEADERS.contains(name)
            && *name != PROOF
            && *name != REPLICA
            && !named.iter().any(|named| named.eq_ignore_ascii_case(name.as_str()))
    };
    let kept = headers.iter().filter(|(name, _)| is_passed_on(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_logged_for_each_replica_but_not_each_time() {
        let refusals = RefusalLog::default();
        let peer = |id: &str| Peer { id: id.to_owned(), address: ([10, 0, 0, 1], 1).into() };
        assert!(refusals.log(&peer("one")) && refusals.log(&peer("other")));
        assert!(!refusals.log(&peer("one")));
        advance(REFUSAL_LOGGED_EVERY).await;
        assert!(refusals.log(&peer("one")) && !refusals.log(&peer("one")));
        assert_eq!(refusals.0.lock().len(), 1);
    }

    #[test]
    fn headers_of_the_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("host", "gateway.example"),
            ("content-length", "2"),
            ("trunkline-replica-proof", "forged"),
            ("trunkline-replica", "forged"),
            ("accept", "a"),
            ("accept", "b"),
            ("mcp-session-id", "x"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let kept = end_to_end(&headers);
        assert_eq!(kept.get_all("accept").iter().count(), 2);
        assert_eq!(kept["mcp-session-id"], "x");
        assert_eq!(kept.len(), 3);
    }
}
