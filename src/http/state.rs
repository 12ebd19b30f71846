//! The state that all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::auth::origin::OriginPolicy;
use super::list_cache::ListCache;
use super::mcp::{self, Sessions, StreamQuota};
use super::pages::sign_in::SignIn;
use super::server_cards::CatalogCache;
use super::unsent::ListenerUnsent;
use super::{admin, error, rest};
use crate::calls::Calls;
use crate::cluster::{Cluster, EndedSessions};
use crate::common::seal::Sealer;
use crate::common::tenant_quota::TenantQuota;
use crate::config::{BatchConfig, Config};
use crate::events::Kinds;
use crate::events::recent::RecentCalls;
use crate::gateway::Gateway;
use crate::store::{EndedSession, Store};
use crate::tenants::Directory;
use crate::tenants::connections::Connections;
use crate::tenants::oauth::{Resource, Verifier};
use crate::trunk::Trunk;

pub struct AppState {
    pub(super) gateway: Arc<Gateway>,
    pub(super) directory: Arc<Directory>,
    pub(super) calls: Calls,
    /// Calls that failed, were refused or slow, of the last while.
    pub(super) recent: Arc<RecentCalls>,
    pub(super) store: Store,
    /// Permits for usage reports: tenants and administrators do not wait for each other.
    pub(super) tenant_reports: Semaphore,
    pub(super) admin_reports: Semaphore,
    /// Permits for requests about tenants' secrets.
    pub(super) secret_requests: Semaphore,
    /// Permits for queries about sessions that are unknown here.
    pub(super) session_queries: Semaphore,
    pub(super) oauth: Option<Arc<Verifier>>,
    /// Tenants that connect themselves to servers.
    pub(super) connections: Option<Arc<Connections>>,
    /// Permits for requests in which tenants connect themselves.
    pub(super) connect_requests: Semaphore,
    /// The OAuth metadata that clients without a token are sent to.
    pub(super) resource: Option<Resource>,
    /// The policy of the listener for callers.
    pub(super) origins: OriginPolicy,
    /// The policy of the listener for operators, which may be the same.
    pub(super) ops_origins: OriginPolicy,
    /// Whether only operators can ask for metrics.
    pub(super) has_ops_listener: bool,
    pub(super) max_body: usize,
    pub(super) batch: BatchConfig,
    pub(super) draining: AtomicBool,
    /// Cancelled at shutdown to end streams that would last for ever.
    pub(super) closing: CancellationToken,
    /// Seals tokens that clients keep: session ids and request states.
    pub(super) sealer: Arc<Sealer>,
    pub(super) sessions: Sessions,
    /// The other replicas, if this gateway is one of several.
    pub(super) cluster: Option<Arc<Cluster>>,
    pub(super) stream_quota: Arc<StreamQuota>,
    /// Permits for questions of servers that wait for their clients.
    pub(super) question_quota: Arc<TenantQuota>,
    pub(super) parked_calls: Arc<mcp::ParkedCalls>,
    /// The streams of clients of 2024-11-05; `None` if these are not served.
    pub(super) sse_clients: Option<mcp::SseClients>,
    pub(super) trunk: Trunk,
    /// Signing in to the live pages.
    pub(super) sign_in: SignIn,
    /// Lists of tools, as they were rendered.
    pub(super) lists: ListCache,
    /// The address that the operator has set, and the catalog of the endpoints at it.
    pub(super) public_url: Option<String>,
    pub(super) catalog: CatalogCache,
}

impl AppState {
    pub fn new(
        gateway: Arc<Gateway>,
        directory: Arc<Directory>,
        oauth: Option<Arc<Verifier>>,
        config: &Config,
    ) -> Self {
        let sealer = Arc::new(Sealer::new(&config.session_keys));
        let calls = calls(gateway.clone(), directory.clone(), None, config);
        let recent = Arc::new(RecentCalls::default());
        gateway.events().attach(Kinds::NOTABLE, recent.clone());
        Self {
            calls,
            recent,
            store: directory.store().clone(),
            tenant_reports: Semaphore::new(admin::TENANT_REPORTS_MAX),
            admin_reports: Semaphore::new(admin::ADMIN_REPORTS_MAX),
            secret_requests: Semaphore::new(rest::secrets::REQUESTS_MAX),
            session_queries: Semaphore::new(mcp::SESSION_QUERIES_MAX),
            directory,
            oauth,
            connections: None,
            connect_requests: Semaphore::new(rest::connect::REQUESTS_MAX),
            resource: config.auth.oauth.as_ref().map(Resource::new),
            origins: OriginPolicy::new(config, config.listen),
            ops_origins: OriginPolicy::new(config, config.ops_listen.unwrap_or(config.listen)),
            has_ops_listener: config.ops_listen.is_some(),
            max_body: config.max_body,
            batch: config.batch.clone(),
            draining: AtomicBool::new(false),
            closing: CancellationToken::new(),
            sessions: Sessions::new(sealer.clone(), None),
            cluster: None,
            sealer,
            stream_quota: Arc::default(),
            question_quota: TenantQuota::new(mcp::QUESTIONS_MAX, mcp::QUESTIONS_OF_TENANT_MAX),
            parked_calls: Arc::default(),
            trunk: Trunk::new(gateway.clone()),
            sign_in: SignIn::default(),
            sse_clients: config.legacy_sse.then(mcp::SseClients::default),
            lists: ListCache::default(),
            public_url: config.public_url.clone(),
            catalog: CatalogCache::default(),
            gateway,
        }
    }

    /// Lets tenants connect themselves to servers.
    pub fn set_connections(&mut self, connections: Arc<Connections>) {
        self.connections = Some(connections);
    }

    /// Makes this gateway one of several replicas. Ends of sessions must be followed from before
    /// this on.
    pub fn join(self, cluster: Arc<Cluster>, config: &Config) -> Self {
        let sessions = Sessions::new(self.sealer.clone(), Some(cluster.clone()));
        let (gateway, directory) = (self.gateway.clone(), self.directory.clone());
        let calls = calls(gateway, directory, Some(cluster.clone()), config);
        Self { calls, sessions, cluster: Some(cluster), ..self }
    }

    pub fn trunk(&self) -> &Trunk {
        &self.trunk
    }

    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Returns the room for responses of one listener.
    pub(super) fn listener_unsent(&self) -> ListenerUnsent {
        let unsent = &self.directory.budgets().unsent;
        let ended = self.gateway.metrics().stuck_responses();
        ListenerUnsent { nobody: unsent.tenant(), operators: unsent.tenant(), ended }
    }

    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Makes `/readyz` answer 503, so that load balancers send new traffic elsewhere.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Returns the token of a link that opens one session of the operators' page, if their port is
    /// on loopback and there is no administrator's key.
    pub fn sign_in_link(&self) -> Option<String> {
        let is_wanted = self.ops_origins.is_local() && !self.directory.has_admin_key();
        is_wanted.then(|| self.sign_in.new_link())
    }

    /// Ends all streams that would last for ever.
    pub fn close_streams(&self) {
        self.closing.cancel();
    }

    /// Ends idle MCP sessions, for ever.
    pub async fn sweep_sessions(&self) {
        let all_forgotten = self.gateway.metrics().forgotten_sessions();
        loop {
            tokio::time::sleep(mcp::SWEEP_EVERY).await;
            let forgotten = self.sessions.sweep();
            if forgotten > 0 {
                tracing::warn!(
                    forgotten,
                    "forgot {forgotten} ended MCP sessions: the tokens of their tenants that are \
                     as old are refused"
                );
                all_forgotten.inc_by(forgotten);
            }
        }
    }

    /// Ends MCP sessions that other replicas report as ended, for ever.
    pub async fn follow_ended_sessions(&self, endings: &mut EndedSessions) {
        loop {
            self.end_sessions(&endings.next().await);
        }
    }

    /// Ends MCP sessions that have ended at another replica.
    fn end_sessions(&self, ended: &[EndedSession]) {
        for session in ended {
            let expires = session.expires.max(0).unsigned_abs() / 1000;
            self.sessions.end_by_id(session.tenant.as_deref(), &session.id, expires);
            self.gateway.registry().end_session(&session.id);
        }
    }
}

fn calls(
    gateway: Arc<Gateway>,
    directory: Arc<Directory>,
    cluster: Option<Arc<Cluster>>,
    config: &Config,
) -> Calls {
    let (render, render_item) = (error::render_error, error::render_item_error);
    Calls::new(gateway, directory, cluster, config, render, render_item)
}
