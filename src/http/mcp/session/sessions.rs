//! The sessions of legacy clients. A session's id is a sealed token that says all about it, so any
//! replica with the same key can serve it. Only state that the token cannot say takes memory.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::opened_tokens::OpenedTokens;
use super::revoked_sessions::{ANY_TENANT, RevokedSessions};
use super::session_token::{SessionToken, now};
use super::{OwnerReplica, Session};
use crate::backend::changes::recipients::SessionClient;
use crate::cluster::{Cluster, Peer};
use crate::common::ids::{SessionId, TenantId};
use crate::common::seal::{Purpose, Sealer};
use crate::http::mcp::Scope;
use crate::protocol::mcp::ProtocolVersion;
use crate::tenants::Tenant;

/// The longest life of a session.
const VALID_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// A remembered session that is not used for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// The longest text of a client's capabilities: the token is a header.
pub(crate) const CAPABILITIES_LEN_MAX: usize = 4096;
/// Sessions that a tenant may open at once, and then per second.
pub(crate) const OPENED_AT_ONCE_MAX: usize = 1000;
const BURST: NonZeroU32 = NonZeroU32::new(OPENED_AT_ONCE_MAX as u32).expect("it is not 0");
const PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("it is not 0");
const SHARDS: usize = 32;
/// The clocks of replicas may differ by this much.
const CLOCKS_DIFFER: Duration = Duration::from_secs(30);
/// How often the owner of a session is told that the session is used in another replica.
pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
/// The most sessions per shard whose last keep-alive is remembered.
const KEEP_ALIVES_MAX: usize = 4096;
/// The most live sessions per shard beyond which one without state is forgotten after each request.
/// Up to this many wait for the next sweep, so that their next request finds them.
const STATELESS_MAX: usize = 64;
/// How often to look for idle sessions.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// All sessions of this process.
pub(crate) struct Sessions {
    sealer: Arc<Sealer>,
    /// Names this process in tokens.
    replica: String,
    cluster: Option<Arc<Cluster>>,
    /// Tokens of other replicas that expire by then may be from before this replica started. Their
    /// sessions may have ended then, and the ends are in the store alone.
    unknown_until: u64,
    /// Limits how often a tenant may open sessions. Opening one is no call, so no rate of the
    /// tenant's counts it. But all replicas remember each ended session until its token expires.
    rate: DefaultKeyedRateLimiter<TenantId>,
    /// By the first byte of the id, so that callers do not share one lock.
    shards: [Mutex<Shard>; SHARDS],
    opened: OpenedTokens,
}

#[derive(Default)]
struct Shard {
    live: HashMap<SessionId, Arc<Session>>,
    revoked: RevokedSessions,
    /// When the owner of a session was last told that it is used here.
    keep_alives: HashMap<SessionId, Instant>,
}

impl Shard {
    fn revoke(&mut self, session: &Session) {
        self.live.remove(&session.id);
        self.revoked.add(&session.tenant.unique_text(), &session.id, session.expires, now());
    }
}

/// Why a token gives no session.
pub(crate) enum NoSession {
    /// Invalid, of another tenant or endpoint, or ended.
    NotFound,
    Unknown(UnknownSession),
}

/// A session of which only the store knows whether it has ended.
pub(crate) struct UnknownSession {
    pub(crate) id: SessionId,
    /// Its unique text.
    tenant: String,
    expires: u64,
}

impl Sessions {
    /// With a cluster, ends of sessions must be followed from before this on.
    pub(crate) fn new(sealer: Arc<Sealer>, cluster: Option<Arc<Cluster>>) -> Self {
        let replica = match &cluster {
            Some(cluster) => cluster.me().id.clone(),
            None => uuid::Uuid::new_v4().simple().to_string(),
        };
        let rate = RateLimiter::keyed(Quota::per_second(PER_SECOND).allow_burst(BURST));
        let all_tokens = || now() + (VALID_FOR + CLOCKS_DIFFER).as_secs();
        let unknown_until = cluster.as_ref().map_or(0, |_| all_tokens());
        let (shards, opened) = Default::default();
        Self { sealer, replica, cluster, unknown_until, rate, shards, opened }
    }

    /// Opens a session and returns its token, unless the tenant opens sessions too often.
    pub(crate) fn create(
        &self,
        tenant: &Tenant,
        scope: &Scope,
        version: ProtocolVersion,
        capabilities: &RawValue,
    ) -> Option<(SessionInUse<'_>, String)> {
        self.rate.check_key(&tenant.id).ok()?;
        let (id, expires) = (SessionId::generate(), now() + VALID_FOR.as_secs());
        let token = SessionToken {
            id: *id.as_bytes(),
            expires,
            version: version.as_str(),
            endpoint: scope.path(),
            owner: &self.replica,
            address: self.cluster.as_ref().map(|cluster| cluster.me().address),
            capabilities,
        };
        let token = serde_json::to_vec(&token).expect("plain data");
        let context = tenant.id.unique_text();
        let token = self.sealer.seal(Purpose::Session, context.as_bytes(), &token);
        let (capabilities, owner) = (capabilities.get().to_owned(), OwnerReplica::This);
        let session = Session::new(id.clone(), tenant, version, capabilities, owner, expires);
        let session = Arc::new(session);
        session.request_started();
        self.shard(&id).lock().live.insert(id, session.clone());
        Some((SessionInUse { sessions: self, session }, token))
    }

    /// Returns the session of a token for one request. The token must be of this tenant and this
    /// endpoint, and its session must not have ended.
    pub(crate) fn acquire(
        &self,
        tenant: &Tenant,
        scope: &Scope,
        token: &str,
    ) -> Result<SessionInUse<'_>, NoSession> {
        if let Some(session) = self.opened.get(&tenant.id, scope, token, now()) {
            let mut shard = self.shard(&session.id).lock();
            // Every end of a session removes it from the live ones.
            if shard.live.get(&session.id).is_some_and(|live| Arc::ptr_eq(live, &session)) {
                return self.begin_request(&mut shard, session.clone());
            }
        }
        self.open(tenant, scope, token)
    }

    /// Opens the token to find its session.
    fn open(
        &self,
        tenant: &Tenant,
        scope: &Scope,
        token: &str,
    ) -> Result<SessionInUse<'_>, NoSession> {
        let context = tenant.id.unique_text();
        let plain = self.sealer.open(Purpose::Session, context.as_bytes(), token);
        let plain = plain.ok_or(NoSession::NotFound)?;
        let opened = SessionToken::parse(&plain)
            .filter(|opened| opened.endpoint == scope.path())
            .ok_or(NoSession::NotFound)?;
        let version = ProtocolVersion::parse(opened.version).ok_or(NoSession::NotFound)?;
        let id = SessionId::from_bytes(opened.id);
        let mut shard = self.shard(&id).lock();
        self.check(&shard, &context, &id, &opened)?;
        let session = shard.live.entry(id.clone()).or_insert_with(|| {
            let capabilities = opened.capabilities.get().to_owned();
            let owner = self.owner(opened.owner, opened.address);
            Arc::new(Session::new(id, tenant, version, capabilities, owner, opened.expires))
        });
        let session = session.clone();
        self.opened.add(scope, token, &session);
        self.begin_request(&mut shard, session)
    }

    /// Counts a request of a live session, unless the session has ended.
    fn begin_request(
        &self,
        shard: &mut Shard,
        session: Arc<Session>,
    ) -> Result<SessionInUse<'_>, NoSession> {
        // First this, then the check: a session with an open request is not evicted.
        session.request_started();
        if session.has_ended() {
            session.request_finished();
            shard.revoke(&session);
            self.announce_end(&session);
            return Err(NoSession::NotFound);
        }
        Ok(SessionInUse { sessions: self, session })
    }

    /// Checks that a session has not ended, as far as this replica knows. Without a cluster, a
    /// session whose end may be forgotten counts as ended.
    fn check(
        &self,
        shard: &Shard,
        tenant: &str,
        id: &SessionId,
        token: &SessionToken<'_>,
    ) -> Result<(), NoSession> {
        if shard.revoked.contains(id) {
            return Err(NoSession::NotFound);
        }
        let is_here = token.owner == self.replica;
        let unknown_until = if is_here { 0 } else { self.unknown_until };
        let unknown_until = unknown_until.max(shard.revoked.evicted_until(tenant));
        let is_known = token.expires > unknown_until
            || shard.live.contains_key(id)
            || shard.revoked.is_confirmed(id);
        if is_known {
            return Ok(());
        }
        // Without a cluster the store has no ends.
        if self.cluster.is_none() {
            return Err(NoSession::NotFound);
        }
        let (id, tenant, expires) = (id.clone(), tenant.to_owned(), token.expires);
        Err(NoSession::Unknown(UnknownSession { id, tenant, expires }))
    }

    /// Notes what the store says about a session.
    pub(crate) fn settle(&self, unknown: &UnknownSession, has_ended: bool) {
        let UnknownSession { id, tenant, expires } = unknown;
        let revoked = &mut self.shard(id).lock().revoked;
        if has_ended {
            revoked.add(tenant, id, *expires, now());
        } else {
            revoked.confirm(tenant, id, *expires, now());
        }
    }

    /// Returns the id in a token of this tenant's, for any endpoint, unless the session has ended
    /// or is unknown. Does not count as use.
    pub(crate) fn id_in(&self, tenant: &TenantId, token: &str) -> Option<SessionId> {
        let context = tenant.unique_text();
        let token = self.sealer.open(Purpose::Session, context.as_bytes(), token)?;
        let token = SessionToken::parse(&token)?;
        let id = SessionId::from_bytes(token.id);
        let known = self.check(&self.shard(&id).lock(), &context, &id, &token);
        known.is_ok().then_some(id)
    }

    /// Ends a session and revokes its token.
    pub(crate) fn end(&self, session: &Session) {
        session.end();
        self.shard(&session.id).lock().revoke(session);
    }

    /// Ends a session that has ended in another replica. Its token would be valid until `expires`.
    /// The tenant is named by its unique text, if it is known.
    pub(crate) fn end_by_id(&self, tenant: Option<&str>, id: &SessionId, expires: u64) {
        let live = {
            let mut shard = self.shard(id).lock();
            shard.revoked.add(tenant.unwrap_or(ANY_TENANT), id, expires, now());
            shard.live.remove(id)
        };
        if let Some(session) = live {
            session.end();
        }
    }

    /// Tells other replicas that a session has ended. The receiver resolves when the store knows.
    pub(crate) fn announce_end(&self, session: &Session) -> Option<oneshot::Receiver<()>> {
        let cluster = self.cluster.as_ref()?;
        // The token is valid until the end of its last second.
        let expires = session.expires.saturating_add(1).saturating_mul(1000);
        let expires = i64::try_from(expires).unwrap_or(i64::MAX);
        Some(cluster.record_ended(&session.tenant, session.id.clone(), expires))
    }

    /// Returns the result of `permit` if the owner of a session is due for a keep-alive. Without a
    /// permit the keep-alive stays due.
    pub(crate) fn keep_alive_due<T>(
        &self,
        id: &SessionId,
        permit: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let sent = &mut self.shard(id).lock().keep_alives;
        let is_recent = |at: &Instant| at.elapsed() < KEEP_ALIVE_EVERY;
        if sent.get(id).is_some_and(is_recent) {
            return None;
        }
        if sent.len() >= KEEP_ALIVES_MAX {
            sent.retain(|_, at| is_recent(at));
        }
        if sent.len() >= KEEP_ALIVES_MAX {
            return None;
        }
        let permit = permit()?;
        sent.insert(id.clone(), Instant::now());
        Some(permit)
    }

    fn owner(&self, id: &str, address: Option<SocketAddr>) -> OwnerReplica {
        match (&self.cluster, address) {
            _ if id == self.replica => OwnerReplica::This,
            (Some(_), Some(address)) => OwnerReplica::Other(Peer { id: id.to_owned(), address }),
            _ => OwnerReplica::Unreachable,
        }
    }

    /// Ends idle sessions; to be called now and then. Returns how many ended sessions were
    /// forgotten since the last call, because there were too many to remember. With a cluster none
    /// is: the store knows them.
    pub(crate) fn sweep(&self) -> u64 {
        let mut forgotten = 0;
        self.rate.retain_recent();
        self.opened.sweep();
        for shard in &self.shards {
            let idle: Vec<_> = {
                let mut shard = shard.lock();
                shard.revoked.remove_expired(now());
                let evicted = shard.revoked.take_evicted();
                forgotten += if self.cluster.is_none() { evicted } else { 0 };
                shard.keep_alives.retain(|_, at| at.elapsed() < KEEP_ALIVE_EVERY);
                // A request or a process of a session holds a reference of its own.
                let is_unused = |session: &Arc<Session>| Arc::strong_count(session) == 1;
                shard.live.values().for_each(|session| session.forget_unheard());
                shard.live.retain(|_, session| !(is_unused(session) && session.is_blank()));
                // Sessions that ended because their process was idle or has crashed, or because
                // their tenant is removed.
                let ended = shard.live.values().filter(|session| session.has_ended());
                let ended: Vec<_> = ended.cloned().collect();
                for session in ended {
                    session.end();
                    shard.revoke(&session);
                    self.announce_end(&session);
                }
                let is_idle = |session: &Arc<Session>| {
                    let since = session.idle_since().filter(|_| is_unused(session));
                    since.is_some_and(|since| since.elapsed() >= IDLE_MAX)
                };
                // Only the owner ends a session. Other replicas forget it: they have its token.
                let is_elsewhere =
                    |session: &Session| self.cluster.is_some() && !session.is_owned_here();
                shard.live.retain(|_, it| !(is_elsewhere(it) && is_idle(it)));
                shard.live.values().filter(|session| is_idle(session)).cloned().collect()
            };
            for session in idle {
                self.end(&session);
                self.announce_end(&session);
            }
        }
        forgotten
    }

    fn shard(&self, id: &SessionId) -> &Mutex<Shard> {
        &self.shards[usize::from(id.as_bytes()[0]) % SHARDS]
    }
}

/// A session that a request uses. When dropped, the session is forgotten if its token says all and
/// there are many sessions.
pub(crate) struct SessionInUse<'a> {
    sessions: &'a Sessions,
    pub(crate) session: Arc<Session>,
}

impl Drop for SessionInUse<'_> {
    fn drop(&mut self) {
        self.session.request_finished();
        let mut shard = self.sessions.shard(&self.session.id).lock();
        let is_crowded = shard.live.len() > STATELESS_MAX;
        // Only this guard and the table hold it.
        if is_crowded && Arc::strong_count(&self.session) == 2 && self.session.is_blank() {
            shard.live.remove(&self.session.id);
        }
    }
}

#[cfg(test)]
#[path = "tests/sessions.rs"]
mod tests;
