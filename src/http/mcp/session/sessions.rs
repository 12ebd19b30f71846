//! The sessions of legacy clients. A session's id is a sealed token that says all about it, so that any replica with
//! the same key can serve it; nothing is remembered of a session as long as nothing must be.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ended_sessions::Ended;
use super::session_rate::Openings;
use super::{Home, Session};
use crate::backend::changes::recipients::SessionClient;
use crate::cluster::{Peer, Cluster};
use crate::common::ids::{SessionId, TenantId};
use crate::common::seal::{Purpose, Sealer};
use crate::http::mcp::Scope;
use crate::protocol::mcp::ProtocolVersion;

/// How long a session lasts at most.
const VALID_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// A session that must be remembered, but is not used for so long, is ended.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// The longest text of a client's capabilities: the token is a header.
pub(crate) const CAPABILITIES_LEN_MAX: usize = 4096;
const SHARDS: usize = 32;
/// How often the replica that keeps a session is told that it is used elsewhere.
pub(crate) const USE_TOLD_EVERY: Duration = Duration::from_secs(10);
/// Sessions of which that is remembered, per shard.
const USE_TOLD_MAX: usize = 4096;
/// How often to look for sessions that were left.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// All sessions of this process.
pub(crate) struct Sessions {
    sealer: Arc<Sealer>,
    /// Names this process in tokens.
    replica: String,
    /// The others, if there may be any.
    replicas: Option<Arc<Cluster>>,
    openings: Openings,
    /// By the first byte of the id: no lock is shared by all callers.
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    live: HashMap<SessionId, Arc<Session>>,
    /// Those that have ended before their time.
    ended: Ended,
    /// When another replica was told that its session is in use.
    use_told: HashMap<SessionId, Instant>,
}

/// What a token says.
#[derive(Serialize, Deserialize)]
struct Token<'a> {
    id: [u8; 16],
    expires: u64,
    version: &'a str,
    /// The server, or nothing for all of them.
    server: Option<&'a str>,
    /// Which replica opened it.
    owner: &'a str,
    /// Where others reach that one, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    #[serde(borrow)]
    capabilities: &'a RawValue,
}

impl Sessions {
    pub(crate) fn new(sealer: Arc<Sealer>, replicas: Option<Arc<Cluster>>) -> Self {
        let replica = match &replicas {
            Some(replicas) => replicas.me().id.clone(),
            None => uuid::Uuid::new_v4().simple().to_string(),
        };
        let openings = Openings::new();
        Self { sealer, replica, replicas, openings, shards: Default::default() }
    }

    /// A new session and its token, unless its tenant opens too many.
    pub(crate) fn create(
        &self,
        tenant: &TenantId,
        scope: &Scope,
        version: ProtocolVersion,
        capabilities: &RawValue,
    ) -> Option<(Entered<'_>, String)> {
        if !self.openings.take(tenant) {
            return None;
        }
        let (id, expires) = (SessionId::generate(), now() + VALID_FOR.as_secs());
        let token = Token {
            id: *id.as_bytes(),
            expires,
            version: version.as_str(),
            server: scope.server(),
            owner: &self.replica,
            address: self.replicas.as_ref().map(|replicas| replicas.me().address),
            capabilities,
        };
        let token = serde_json::to_vec(&token).expect("plain data");
        let token = self.sealer.seal(Purpose::Session, tenant.as_str().as_bytes(), &token);
        let capabilities = capabilities.get().to_owned();
        let session = Session::new(id.clone(), tenant.clone(), capabilities, Home::Here, expires);
        let session = Arc::new(session);
        session.enter();
        self.shard(&id).lock().live.insert(id, session.clone());
        Some((Entered { sessions: self, session }, token))
    }

    /// The session that a token names, if it is this tenant's, for this endpoint, and not over.
    pub(crate) fn enter(
        &self,
        tenant: &TenantId,
        scope: &Scope,
        token: &str,
    ) -> Option<Entered<'_>> {
        let token = self.sealer.open(Purpose::Session, tenant.as_str().as_bytes(), token)?;
        let token: Token<'_> = serde_json::from_slice(&token).ok()?;
        if token.expires < now() || token.server != scope.server() {
            return None;
        }
        ProtocolVersion::parse(token.version)?;
        let id = SessionId::from_bytes(token.id);
        let mut shard = self.shard(&id).lock();
        if shard.ended.contains(&id) {
            return None;
        }
        let session = shard.live.entry(id.clone()).or_insert_with(|| {
            let capabilities = token.capabilities.get().to_owned();
            let home = self.home(token.owner, token.address);
            Arc::new(Session::new(id.clone(), tenant.clone(), capabilities, home, token.expires))
        });
        let session = session.clone();
        // In this order: one that a request has entered is not ended to make room.
        session.enter();
        if session.has_ended() {
            session.leave();
            shard.live.remove(&id);
            shard.ended.note(&id, session.expires, now());
            self.tell_ended(&session);
            return None;
        }
        Some(Entered { sessions: self, session })
    }

    /// The session that a token names, whatever its endpoint, if it is this tenant's and not over. To look at it is not to
    /// use it.
    pub(crate) fn named(&self, tenant: &TenantId, token: &str) -> Option<SessionId> {
        let token = self.sealer.open(Purpose::Session, tenant.as_str().as_bytes(), token)?;
        let token: Token<'_> = serde_json::from_slice(&token).ok()?;
        let id = SessionId::from_bytes(token.id);
        let is_over = token.expires < now() || self.shard(&id).lock().ended.contains(&id);
        (!is_over).then_some(id)
    }

    /// Ends a session. Its token is worth nothing from now on.
    pub(crate) fn end(&self, session: &Session) {
        session.end();
        let mut shard = self.shard(&session.id).lock();
        shard.live.remove(&session.id);
        shard.ended.note(&session.id, session.expires, now());
    }

    /// A session has ended elsewhere, whose token would be good until `expires`.
    pub(crate) fn end_by_id(&self, id: &SessionId, expires: u64) {
        let live = {
            let mut shard = self.shard(id).lock();
            shard.ended.note(id, expires, now());
            shard.live.remove(id)
        };
        if let Some(session) = live {
            session.end();
        }
    }

    /// Has other replicas learn that a session has ended here; gives who says when it is written down.
    pub(crate) fn tell_ended(&self, session: &Session) -> Option<oneshot::Receiver<()>> {
        let replicas = self.replicas.as_ref()?;
        // To its last second.
        let expires = session.expires.saturating_add(1).saturating_mul(1000);
        Some(replicas.record_ended(session.id.clone(), i64::try_from(expires).unwrap_or(i64::MAX)))
    }

    /// A turn to tell the replica that keeps a session that it is in use, if it is time to. Where there is no turn, it is
    /// still time afterwards.
    pub(crate) fn tell_use<T>(
        &self,
        id: &SessionId,
        turn: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let told = &mut self.shard(id).lock().use_told;
        let is_recent = |at: &Instant| at.elapsed() < USE_TOLD_EVERY;
        if told.get(id).is_some_and(is_recent) {
            return None;
        }
        if told.len() >= USE_TOLD_MAX {
            told.retain(|_, at| is_recent(at));
        }
        if told.len() >= USE_TOLD_MAX {
            return None;
        }
        let turn = turn()?;
        told.insert(id.clone(), Instant::now());
        Some(turn)
    }

    /// Where a session is that a token names.
    fn home(&self, owner: &str, address: Option<SocketAddr>) -> Home {
        match (&self.replicas, address) {
            _ if owner == self.replica => Home::Here,
            (Some(_), Some(address)) => Home::At(Peer { id: owner.to_owned(), address }),
            _ => Home::Lost,
        }
    }

    /// Ends sessions that were left; to be called now and then. Gives how many tokens of ended sessions are good again
    /// since the last time, because there were too many to remember.
    pub(crate) fn sweep(&self) -> u64 {
        let mut forgotten = 0;
        self.openings.sweep();
        for shard in &self.shards {
            let left: Vec<_> = {
                let mut shard = shard.lock();
                shard.ended.forget_before(now());
                forgotten += shard.ended.take_forgotten();
                shard.use_told.retain(|_, at| at.elapsed() < USE_TOLD_EVERY);
                // Whoever uses one, or has a process for it, holds it too.
                let is_unused = |session: &Arc<Session>| Arc::strong_count(session) == 1;
                shard.live.values().for_each(|session| session.forget());
                shard.live.retain(|_, session| !(is_unused(session) && session.is_blank()));
                // Among them those whose process was left idle, or has crashed.
                let over = shard.live.values().filter(|session| session.has_ended());
                let over: Vec<_> = over.cloned().collect();
                for session in over {
                    shard.live.remove(&session.id);
                    shard.ended.note(&session.id, session.expires, now());
                    self.tell_ended(&session);
                }
                let is_left = |session: &Arc<Session>| {
                    let since = session.idle_since().filter(|_| is_unused(session));
                    since.is_some_and(|since| since.elapsed() >= IDLE_MAX)
                };
                // Of one that another replica keeps, this one need not know more than its token says.
                let is_kept_elsewhere =
                    |session: &Session| self.replicas.is_some() && !session.is_ours();
                shard.live.retain(|_, it| !(is_kept_elsewhere(it) && is_left(it)));
                shard.live.values().filter(|session| is_left(session)).cloned().collect()
            };
            for session in left {
                self.end(&session);
                self.tell_ended(&session);
            }
        }
        forgotten
    }

    fn shard(&self, id: &SessionId) -> &Mutex<Shard> {
        &self.shards[usize::from(id.as_bytes()[0]) % SHARDS]
    }
}

/// A session while a request uses it. Afterwards it is forgotten, if there is nothing to remember.
pub(crate) struct Entered<'a> {
    sessions: &'a Sessions,
    pub(crate) session: Arc<Session>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.session.leave();
        let mut shard = self.sessions.shard(&self.session.id).lock();
        // Besides this one, only the table holds it.
        if Arc::strong_count(&self.session) == 2 && self.session.is_blank() {
            shard.live.remove(&self.session.id);
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
#[path = "tests/sessions.rs"]
mod tests;
