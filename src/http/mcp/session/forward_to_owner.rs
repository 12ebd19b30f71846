//! Requests that another replica has to answer, since it keeps their session, or that all replicas have to hear of.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Response};
use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::sessions::USE_TOLD_EVERY;
use super::{Home, Session};
use crate::cluster::{PeerRequest, Peer, Cluster, SendError, end_to_end};
use crate::config;
use crate::gateway::{CallError, Caller, Executed};
use crate::http::Front;
use crate::http::mcp::legacy::gone;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::stream::relay_response::pass_back;
use crate::http::mcp::{Asking, Scope};
use crate::http::rest::call::asked_timeout;
use crate::protocol::mcp::{LogLevel, method};
use crate::registry::Server;

/// How long what is done at once may take another replica.
pub(crate) const PROMPT: Duration = Duration::from_secs(5);
/// A replica that still answers is itself the one that says that it is too late: it has so much longer.
const GRACE: Duration = Duration::from_secs(2);
/// When to try again what a replica has refused.
const REFUSED_RETRY: Duration = Duration::from_secs(5);
/// How long a client that ends its session waits until all replicas know.
const ENDING_WAIT: Duration = Duration::from_secs(1);

/// A request that means nothing but that its client is there.
const PING: &str = r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#;

/// A request as it came: what another replica would need.
pub(crate) struct Arrived<'a> {
    pub(crate) front: &'a Arc<Front>,
    pub(crate) scope: &'a Scope,
    pub(crate) method: Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
    /// Whether another replica has sent it. Then it goes no further.
    pub(crate) is_relayed: bool,
}

impl Arrived<'_> {
    /// The other replica that keeps a session, if it is to be asked.
    pub(crate) fn keeper<'s>(&self, session: &'s Session) -> Option<&'s Peer> {
        match &session.home {
            Home::At(peer) if !self.is_relayed => Some(peer),
            _ => None,
        }
    }

    /// Has the replica answer that keeps the session. `id` is that of the request, if it is one that is answered.
    pub(crate) async fn ask(
        &self,
        keeper: &Peer,
        deadline: Instant,
        id: Option<&RawValue>,
    ) -> Result<Response<Body>, RpcError> {
        let Some(replicas) = self.replicas() else { return Err(gone()) };
        let count = |outcome| self.front.gateway.metrics().forwarded(outcome).inc();
        let until = deadline + GRACE;
        match timeout_at(until, replicas.send(keeper, &self.letter())).await {
            Ok(Ok(response)) => {
                count("answered");
                // A stream that is no answer lasts.
                let until = (self.method != Method::GET).then_some(until);
                Ok(pass_back(response, until, id, self.front.closing.clone()))
            }
            Ok(Err(SendError::Gone(why))) => {
                count("gone");
                tracing::debug!(replica = %keeper.address, %why, "the replica that kept a session is gone");
                Err(gone())
            }
            Ok(Err(SendError::Refused)) => {
                count("refused");
                Err(refused().into())
            }
            Ok(Err(SendError::Broken(why))) => {
                count("broken");
                tracing::debug!(replica = %keeper.address, %why, "the replica that keeps a session broke off");
                Err(broken_off().into())
            }
            Err(_) => {
                count("late");
                Err(CallError::DeadlineExceeded { executed: Executed::Unknown }.into())
            }
        }
    }

    /// Has all other replicas hear it, without waiting for them; where much is being told already, the request itself waits
    /// until they have.
    pub(crate) async fn tell_soon(&self, session: &Session) {
        let Some(replicas) = self.replicas() else { return };
        match replicas.notice_permit(&session.tenant) {
            Some(turn) => {
                let others = replicas.others_and(self.keeper(session));
                replicas.notify_in_background(turn, others, self.letter());
            }
            None => self.tell(session).await,
        }
    }

    /// Tells the replica that keeps a session that it is in use, now and then: what it keeps for a session that nobody uses
    /// goes.
    pub(crate) fn note_use(&self, keeper: &Peer, session: &Session) {
        tell_use(self.front, keeper, session, || self.ping());
    }

    /// The same, for what may go on for longer.
    pub(crate) fn used_here(&self, keeper: &Peer, session: &Arc<Session>) -> UsedHere {
        let (front, session) = (self.front.clone(), session.clone());
        UsedHere { front, keeper: keeper.clone(), session, ping: self.ping() }
    }

    /// Has all other replicas hear it.
    pub(crate) async fn tell(&self, session: &Session) {
        self.tell_as(session, self.body.clone()).await;
    }

    /// Has all other replicas hear which log level a session has. Nothing else of the request, which may be long, is of use
    /// to them.
    pub(crate) async fn tell_level(&self, session: &Session, level: LogLevel) {
        let (method, level) = (method::SET_LOG_LEVEL, level.as_str());
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": method, "params": {"level": level}});
        self.tell_as(session, body.to_string().into()).await;
    }

    async fn tell_as(&self, session: &Session, body: Bytes) {
        if let Some(replicas) = self.replicas() {
            let others = replicas.others_and(self.keeper(session));
            replicas.notify(&others, &PeerRequest { body, ..self.letter() }).await;
        }
    }

    /// Has all other replicas hear that a session has ended, also those that are started later.
    pub(crate) async fn tell_of_end(&self, session: &Session) {
        if self.is_relayed {
            return;
        }
        let written = self.front.sessions.tell_ended(session);
        let written = async {
            if let Some(written) = written {
                let _ = written.await;
            }
        };
        let _ = timeout(ENDING_WAIT, async { tokio::join!(self.tell(session), written) }).await;
    }

    fn replicas(&self) -> Option<&Arc<Cluster>> {
        self.front.replicas.as_ref().filter(|_| !self.is_relayed)
    }

    fn ping(&self) -> PeerRequest {
        PeerRequest { body: Bytes::from_static(PING.as_bytes()), ..self.letter() }
    }

    fn letter(&self) -> PeerRequest {
        let path = match self.scope {
            Scope::All => "/mcp".to_owned(),
            // The name of a server that is there: nothing in it needs to be escaped.
            Scope::One(server) => format!("/mcp/{server}"),
        };
        let (method, headers) = (self.method.clone(), end_to_end(self.headers));
        PeerRequest { method, path, headers, body: self.body.clone() }
    }
}

/// A session that another replica keeps, while a call of it runs here.
pub(crate) struct UsedHere {
    front: Arc<Front>,
    keeper: Peer,
    session: Arc<Session>,
    ping: PeerRequest,
}

impl UsedHere {
    /// Has the replica that keeps it know, now and then. Never done.
    pub(crate) async fn tell_on(used: Option<Self>) -> Infallible {
        let Some(Self { front, keeper, session, ping }) = used else { return pending().await };
        loop {
            tell_use(&front, &keeper, &session, || ping.clone());
            sleep(USE_TOLD_EVERY).await;
        }
    }
}

fn tell_use(front: &Front, keeper: &Peer, session: &Session, ping: impl FnOnce() -> PeerRequest) {
    let Some(replicas) = &front.replicas else { return };
    let turn = || replicas.use_notice_permit(&session.tenant);
    if let Some(turn) = front.sessions.tell_use(&session.id, turn) {
        replicas.notify_in_background(turn, vec![keeper.clone()], ping());
    }
}

impl<'a> Asking<'a> {
    /// The request as it came.
    pub(crate) fn as_it_came(&self) -> Arrived<'a> {
        let Asking { front, scope, headers, body, is_relayed, .. } = *self;
        Arrived { front, scope, method: Method::POST, headers, body, is_relayed }
    }

    /// When a request to the servers of its endpoint is no longer of use, by what the slowest may take.
    pub(crate) fn deadline(&self, caller: &Caller) -> Result<Instant, CallError> {
        let shown = self.front.gateway.servers(caller).filter(|it| self.scope.shows(it.id()));
        let asked = asked_timeout(self.headers)?;
        // Progress may give a call more time, if it has not named its own.
        let longest = |it: &config::Server| it.timeout.max(it.max_timeout.unwrap_or_default());
        let longest = shown.map(|server| longest(server.config())).max();
        Ok(self.arrived + asked.or(longest).unwrap_or(PROMPT))
    }

    /// Whether there is a server that each session has its own process of.
    pub(crate) fn shows_own(&self, caller: &Caller) -> bool {
        let mut servers = self.front.gateway.servers(caller);
        servers.any(|it| matches!(&*it, Server::PerSession(_)) && self.scope.shows(it.id()))
    }
}

/// It may be taken once the replicas agree again: the session need not be opened anew.
fn refused() -> CallError {
    let reason =
        "the replica that keeps its session does not take what this one sends on".to_owned();
    CallError::ServerUnavailable { reason, retry_after: REFUSED_RETRY }
}

/// The answer that will not come.
pub(crate) fn broken_off() -> CallError {
    let reason = "the replica that keeps its session has ended".to_owned();
    CallError::BackendExited { reason, executed: Executed::Unknown }
}
