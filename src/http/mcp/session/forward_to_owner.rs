//! Forwards requests to the replica that owns their session, and tells all replicas what they must
//! know of a session.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Response};
use bytes::Bytes;
use futures_util::future::OptionFuture;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::sessions::KEEP_ALIVE_EVERY;
use super::{OwnerReplica, Session};
use crate::cluster::{
    CANCELS_OF_TENANT_MAX, Cluster, Peer, PeerRequest, PeerSendError, end_to_end,
};
use crate::common::limit_use::LimitUse;
use crate::gateway::{CallError, Executed};
use crate::http::AppState;
use crate::http::mcp::HttpRequest;
use crate::http::mcp::legacy::session_not_found;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::stream::relay_response::relay;
use crate::protocol::jsonrpc::ID_LEN_MAX;
use crate::protocol::mcp::{LogLevel, method};

/// How long another replica may take for what waits for no server.
pub(crate) const PROMPT: Duration = Duration::from_secs(5);
/// The owner has this much longer, so that the owner itself reports an exceeded deadline.
const GRACE: Duration = Duration::from_secs(2);
const REFUSED_RETRY: Duration = Duration::from_secs(5);
/// How long a client that ends its session waits for all replicas to know.
const END_WAIT: Duration = Duration::from_secs(1);
const TOO_MANY_CANCELLED: &str =
    "too many requests are cancelled at once; cancel this one again in a moment";
const PING: &str = r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#;

impl HttpRequest {
    /// Returns the other replica that owns a session. A request that came from a replica goes no
    /// further.
    pub(crate) fn remote_owner<'s>(&self, session: &'s Session) -> Option<&'s Peer> {
        match &session.owner {
            OwnerReplica::Other(peer) if !self.is_forwarded => Some(peer),
            _ => None,
        }
    }

    /// Forwards the request to the owner of its session and relays the response. `id` is that of
    /// the JSON-RPC request, if it is one.
    pub(crate) async fn forward_to(
        &self,
        owner: &Peer,
        deadline: Instant,
        id: Option<&RawValue>,
    ) -> Result<Response<Body>, RpcError> {
        self.forward_or(owner, deadline, id, session_not_found).await
    }

    /// Forwards like [`Self::forward_to`], with another error if that replica has gone.
    pub(crate) async fn forward_or(
        &self,
        owner: &Peer,
        deadline: Instant,
        id: Option<&RawValue>,
        gone: fn() -> RpcError,
    ) -> Result<Response<Body>, RpcError> {
        let Some(cluster) = self.cluster() else { return Err(gone()) };
        let count = |outcome| self.app.gateway.metrics().forwarded(outcome).inc();
        let until = deadline + GRACE;
        match timeout_at(until, cluster.send(owner, &self.peer_request())).await {
            Ok(Ok(response)) => {
                count("answered");
                // The stream of a session lasts.
                let until = (self.method != Method::GET).then_some(until);
                Ok(relay(response, until, id, self.app.closing.clone()))
            }
            Ok(Err(PeerSendError::Gone(why))) => {
                count("gone");
                tracing::debug!(replica = %owner.address, %why, "the owner of a session is gone");
                Err(gone())
            }
            Ok(Err(PeerSendError::Refused)) => {
                count("refused");
                // The session is still there, so the client need not open another.
                let reason =
                    "the replica that owns the session refuses forwarded requests".to_owned();
                Err(CallError::unavailable(reason, REFUSED_RETRY).into())
            }
            Ok(Err(PeerSendError::Broken(why))) => {
                count("broken");
                tracing::debug!(
                    replica = %owner.address, %why, "the owner of a session broke off a response"
                );
                Err(owner_exited().into())
            }
            Err(_) => {
                count("late");
                Err(CallError::DeadlineExceeded { executed: Executed::Unknown }.into())
            }
        }
    }

    /// Tells all other replicas, in the background, that a request of this session was cancelled:
    /// it may run in any of them. They get its id and nothing else of the notification, which may
    /// be long. Fails if the tenant has too many such notices under way.
    pub(crate) async fn notify_cancel(
        &self,
        session: &Session,
        request_id: &RawValue,
    ) -> Result<(), CallError> {
        let Some(cluster) = self.cluster() else { return Ok(()) };
        let Some(body) = cancel_notice(request_id) else { return Ok(()) };
        let count = |outcome| self.app.gateway.metrics().cancel_notices(outcome).inc();
        let Some(permit) = cluster.cancel_permit(&session.tenant).await else {
            count("refused");
            return Err(CallError::busy(
                LimitUse::reached("cancel_notices", CANCELS_OF_TENANT_MAX),
                TOO_MANY_CANCELLED,
            ));
        };
        count("sent");
        let others = cluster.others_and(self.remote_owner(session));
        let notice = PeerRequest { body, ..self.peer_request() };
        cluster.notify_in_background(permit, others, notice);
        Ok(())
    }

    /// Sends a session's log level to all other replicas. The rest of the request may be long, and
    /// they have no use for it.
    pub(crate) async fn notify_log_level(&self, session: &Session, level: LogLevel) {
        let (method, level) = (method::SET_LOG_LEVEL, level.as_str());
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": method, "params": {"level": level}});
        self.notify_and_wait(session, body.to_string().into()).await;
    }

    /// Tells all other replicas that a session has ended, including those that start later.
    pub(crate) async fn notify_end(&self, session: &Session) {
        if self.is_forwarded {
            return;
        }
        let stored = OptionFuture::from(self.app.sessions.announce_end(session));
        let notified = self.notify_and_wait(session, self.body.clone());
        let _ = timeout(END_WAIT, async { tokio::join!(notified, stored) }).await;
    }

    async fn notify_and_wait(&self, session: &Session, body: Bytes) {
        if let Some(cluster) = self.cluster() {
            let others = cluster.others_and(self.remote_owner(session));
            cluster.notify(&others, &PeerRequest { body, ..self.peer_request() }).await;
        }
    }

    /// Returns keep-alives for the owner of a session, which would end a session that nobody uses.
    pub(crate) fn keep_alives(&self, owner: &Peer, session: &Arc<Session>) -> KeepAlives {
        let body = Bytes::from_static(PING.as_bytes());
        let ping = PeerRequest { body, ..self.peer_request() };
        KeepAlives { app: self.app.clone(), owner: owner.clone(), session: session.clone(), ping }
    }

    fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.app.cluster.as_ref().filter(|_| !self.is_forwarded)
    }

    fn peer_request(&self) -> PeerRequest {
        let path = match self.scope.path() {
            None => "/mcp".to_owned(),
            // The name of an existing server or toolset needs no escapes.
            Some(path) => format!("/mcp/{path}"),
        };
        let (method, headers) = (self.method.clone(), end_to_end(&self.headers));
        PeerRequest { method, path, headers, body: self.body.clone() }
    }
}

/// Tells the owner of a session that the session is used here.
pub(crate) struct KeepAlives {
    app: Arc<AppState>,
    owner: Peer,
    session: Arc<Session>,
    ping: PeerRequest,
}

impl KeepAlives {
    pub(crate) fn send_if_due(&self) {
        let Some(cluster) = &self.app.cluster else { return };
        let permit = || cluster.use_notice_permit(&self.session.tenant);
        if let Some(permit) = self.app.sessions.keep_alive_due(&self.session.id, permit) {
            cluster.notify_in_background(permit, vec![self.owner.clone()], self.ping.clone());
        }
    }

    /// Sends keep-alives, if any are given, until the future is dropped.
    pub(crate) async fn run(keep_alives: Option<Self>) -> Infallible {
        let Some(keep_alives) = keep_alives else { return pending().await };
        loop {
            keep_alives.send_if_due();
            sleep(KEEP_ALIVE_EVERY).await;
        }
    }
}

/// Returns the notification that a request was cancelled; `None` if no request has such an id.
fn cancel_notice(request_id: &RawValue) -> Option<Bytes> {
    let id = request_id.get();
    let is_id = id.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
    let method = method::CANCELLED;
    (is_id && id.len() <= ID_LEN_MAX).then(|| {
        let params = format!(r#"{{"requestId":{id}}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#).into()
    })
}

/// The error for a response that will not come.
pub(crate) fn owner_exited() -> CallError {
    let reason = "the replica that owns the session has exited".to_owned();
    CallError::BackendExited { reason, executed: Executed::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_has_the_id_of_a_request_and_nothing_else() {
        let notice = |id: &str| {
            let id = RawValue::from_string(id.to_owned()).unwrap();
            cancel_notice(&id).map(|notice| String::from_utf8(notice.into()).unwrap())
        };
        let expected = |id: &str| {
            let params = format!("{{\"requestId\":{id}}}");
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
        };
        for id in ["7", "-1", "\"a\\n\"", "1.5"] {
            assert_eq!(notice(id), Some(expected(id)));
        }
        let longest = format!("\"{}\"", "x".repeat(ID_LEN_MAX - 2));
        assert!(notice(&longest).is_some());
        for id in [&longest.replacen('x', "xx", 1), "null", "true", "{\"a\":1}", "[1]"] {
            assert_eq!(notice(id), None, "no request has the id {id}");
        }
    }
}
