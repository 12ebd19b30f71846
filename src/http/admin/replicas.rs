//! The trunks of all replicas in one stream: the replica that is asked passes on what it hears from
//! each of the others through the replicas' own port.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Method, StatusCode};
use bytes::{Bytes, BytesMut};
use serde_json::json;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, Peer, PeerRequest, end_to_end};
use crate::http::sse::named_event;

/// How often replicas that came, and streams that broke off, are noticed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Events that wait for the viewer. Then the others' streams wait, too.
const EVENTS_MAX: usize = 16;
/// The longest event of another replica.
const EVENT_LEN_MAX: usize = 16 << 20;

/// The events of all other replicas, until dropped.
pub(super) struct OtherReplicas {
    pub(super) events: Receiver<Bytes>,
    _listening: AbortOnDropHandle<()>,
}

impl OtherReplicas {
    /// Listens to the others on behalf of whoever has sent a request with these headers.
    pub(super) fn listen(cluster: Arc<Cluster>, headers: &HeaderMap) -> Self {
        let request = PeerRequest {
            method: Method::GET,
            path: "/admin/v1/live".to_owned(),
            headers: end_to_end(headers),
            body: Bytes::new(),
        };
        let (sender, events) = channel(EVENTS_MAX);
        let listening = tokio::spawn(listen(cluster, request, sender));
        Self { events, _listening: AbortOnDropHandle::new(listening) }
    }
}

async fn listen(cluster: Arc<Cluster>, request: PeerRequest, events: Sender<Bytes>) {
    let mut streams: HashMap<String, AbortOnDropHandle<()>> = HashMap::new();
    loop {
        let others = cluster.others_and(None);
        streams.retain(|id, it| !it.is_finished() && others.iter().any(|peer| peer.id == *id));
        for peer in others {
            streams.entry(peer.id.clone()).or_insert_with(|| {
                let (cluster, request, events) = (cluster.clone(), request.clone(), events.clone());
                AbortOnDropHandle::new(tokio::spawn(async move {
                    if let Some(()) = pass_on(&cluster, &peer, &request, &events).await {
                        let gone = json!({"replica": peer.address.to_string(), "gone": true});
                        let gone = named_event("change", &[gone.to_string().as_bytes()]);
                        let _ = events.send(gone).await;
                    }
                }))
            });
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Passes on the events of one replica until its stream ends. Returns `None` if there was none.
async fn pass_on(
    cluster: &Cluster,
    peer: &Peer,
    request: &PeerRequest,
    events: &Sender<Bytes>,
) -> Option<()> {
    let response = cluster.send(peer, request).await;
    let mut response = response.ok().filter(|it| it.status() == StatusCode::OK)?;
    let mut text = BytesMut::new();
    let name = peer.address.to_string();
    while let Ok(Some(bytes)) = response.chunk().await {
        text.extend_from_slice(&bytes);
        while let Some(end) = memchr::memmem::find(&text, b"\n\n") {
            let event = text.split_to(end + 2);
            if let Some(event) = of_replica(&event, &name)
                && events.send(event).await.is_err()
            {
                return Some(());
            }
        }
        if text.len() > EVENT_LEN_MAX {
            break;
        }
    }
    Some(())
}

/// Names the replica in an event. Returns `None` for comments.
pub(super) fn of_replica(event: &[u8], name: &str) -> Option<Bytes> {
    const DATA: &[u8] = b"\ndata: {";
    let at = memchr::memmem::find(event, DATA)? + DATA.len();
    let mut named = BytesMut::with_capacity(event.len() + name.len() + 16);
    named.extend_from_slice(&event[..at]);
    named.extend_from_slice(format!("\"replica\":{},", json!(name)).as_bytes());
    named.extend_from_slice(&event[at..]);
    Some(named.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_replica_and_a_comment_does_not() {
        let event = named_event("change", &[br#"{"at":1}"#]);
        let named = of_replica(&event, "10.0.0.1:8082").unwrap();
        assert_eq!(named, "event: change\ndata: {\"replica\":\"10.0.0.1:8082\",\"at\":1}\n\n");
        assert_eq!(of_replica(b":\n\n", "x"), None);
    }
}
