//! Calls that were not kept: failures, refusals and slow calls of the last while, by their ids.
//!
//! A call is known to the replica that had it. The other replicas are asked there; none of them
//! asks further.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::{Cluster, Peer, PeerRequest, end_to_end};
use crate::events::EndedCall;
use crate::events::call_log::in_ms;
use crate::http::state::AppState;

/// How long the other replicas may take to look for a call.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the record of a call.
pub(crate) fn record_json(call: &EndedCall) -> Value {
    let ended = call.arrived + call.took;
    json!({
        "id": call.id.to_string(),
        "server": call.server,
        "tool": call.target,
        "state": "ended",
        "created": call.arrived,
        "ended": ended,
        "outcome": call.outcome.as_str(),
        "executed": call.executed,
        "code": call.code,
        "attempts": call.attempts,
        "queue_ms": in_ms(call.queue),
        "backend_ms": in_ms(call.backend),
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
        "labels": call.tags.labels,
        "request_id": call.tags.request_id,
        "key": call.key.map(|key| key.as_str().to_owned()),
    })
}

/// Asks the other replicas to do the same, on behalf of the same caller; returns the answer of the
/// first that knows the call.
pub(crate) async fn ask_others(
    app: &AppState,
    method: Method,
    path: String,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    let cluster = app.cluster.as_ref()?;
    let headers = end_to_end(headers);
    let request = PeerRequest { method, path, headers, body: Bytes::new() };
    let others = cluster.others_and(None);
    let mut asked: FuturesUnordered<_> =
        others.iter().map(|peer| ask(cluster, peer, &request)).collect();
    let first = async {
        while let Some(answer) = asked.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        None
    };
    timeout(PEER_TIMEOUT, first).await.ok().flatten()
}

async fn ask(cluster: &Cluster, peer: &Peer, request: &PeerRequest) -> Option<Response<Body>> {
    match cluster.send(peer, request).await {
        Ok(answer) if answer.status() == StatusCode::OK => {
            Some(super::calls::respond_bytes(answer.bytes().await.ok()?))
        }
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(replica = %peer.address, %error, "a call could not be asked for");
            None
        }
    }
}
