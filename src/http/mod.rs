//! The HTTP front end. Every route is on this page, but for those of `/admin/v1` (`admin`).

mod admin;
mod auth;
mod body;
mod connection_timeouts;
mod error;
mod mcp;
mod oauth;
mod ops;
mod replicas;
mod rest;
pub mod server;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Endings, Replicas};
use crate::common::seal::Sealer;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::store::{EndedSession, Store};
use crate::tenants::Directory;
use crate::tenants::oauth::{Resource, Verifier};

use self::auth::origin::Web;
use mcp::{Sessions, StreamQuota};

pub use self::auth::cors::Routes;

/// What the handlers share.
pub struct Front {
    gateway: Arc<Gateway>,
    /// Who there is.
    directory: Arc<Directory>,
    store: Store,
    /// Turns to have a report made, for tenants and for administrators: neither keep the others waiting.
    tenants_reports: Semaphore,
    admins_reports: Semaphore,
    /// Turns to look at or change a tenant's secrets.
    secret_turns: Semaphore,
    /// Who else may say who calls.
    oauth: Option<Arc<Verifier>>,
    /// What clients are told of tokens, if there are any.
    resource: Option<Resource>,
    /// Which web pages may call, and by which names.
    web: Web,
    /// The largest request body.
    max_body: usize,
    draining: AtomicBool,
    /// Cancelled when streams that would last for ever must end.
    closing: CancellationToken,
    /// Seals what clients carry for us.
    sealer: Arc<Sealer>,
    sessions: Sessions,
    /// The others, if this is one of several.
    replicas: Option<Arc<Replicas>>,
    stream_quota: Arc<StreamQuota>,
}

impl Front {
    /// A front end before `gateway`, for those whom `directory` knows.
    pub fn new(
        gateway: Arc<Gateway>,
        directory: Arc<Directory>,
        oauth: Option<Arc<Verifier>>,
        config: &Config,
    ) -> Self {
        let sealer = Arc::new(Sealer::new(&config.session_keys));
        Self {
            gateway,
            store: directory.store().clone(),
            tenants_reports: Semaphore::new(admin::TENANTS_REPORTS),
            admins_reports: Semaphore::new(admin::ADMINS_REPORTS),
            secret_turns: Semaphore::new(rest::secrets::TURNS),
            directory,
            oauth,
            resource: config.auth.oauth.as_ref().map(Resource::new),
            web: Web::new(config),
            max_body: config.max_body,
            draining: AtomicBool::new(false),
            closing: CancellationToken::new(),
            sessions: Sessions::new(sealer.clone(), None),
            replicas: None,
            sealer,
            stream_quota: Arc::default(),
        }
    }

    /// The same as one of several.
    pub fn among(self, replicas: Arc<Replicas>) -> Self {
        let sessions = Sessions::new(self.sealer.clone(), Some(replicas.clone()));
        Self { sessions, replicas: Some(replicas), ..self }
    }

    /// What is behind it.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// From now on `/readyz` sends new traffic elsewhere.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Ends the streams that nobody else would end.
    pub fn close_streams(&self) {
        self.closing.cancel();
    }

    /// Ends MCP sessions that were left. Never done.
    pub async fn sweep_sessions(&self) {
        let all_forgotten = self.gateway.metrics().forgotten_sessions();
        loop {
            tokio::time::sleep(mcp::SWEEP_EVERY).await;
            let forgotten = self.sessions.sweep();
            if forgotten > 0 {
                tracing::warn!(
                    forgotten,
                    "more MCP sessions have been ended than can be remembered: tokens of {forgotten} of them are good again"
                );
                all_forgotten.inc_by(forgotten);
            }
        }
    }

    /// Ends MCP sessions that have ended in other replicas. Never done.
    pub async fn follow(&self, mut endings: Endings) {
        loop {
            self.end_all(&endings.next().await);
        }
    }

    /// Ends MCP sessions that have ended elsewhere.
    pub fn end_all(&self, ended: &[EndedSession]) {
        for session in ended {
            let expires = session.expires.max(0).unsigned_abs() / 1000;
            self.sessions.end_by_id(&session.id, expires);
            self.gateway.registry().end_session(&session.id);
        }
    }
}

/// The routes for callers, and with them those for operators unless these have a port of their own.
pub fn router(front: Arc<Front>, with_ops: bool) -> Routes {
    let callers = Router::new()
        .route("/v1/servers", get(rest::servers::list_servers))
        .route("/v1/servers/{server}", get(rest::servers::show_server))
        .route("/v1/servers/{server}/tools", get(rest::servers::list_tools))
        .route("/v1/servers/{server}/tools/{tool}", post(rest::call::call_tool))
        .route("/v1/servers/{server}/secrets", get(rest::secrets::list))
        .route(
            "/v1/servers/{server}/secrets/{name}",
            put(rest::secrets::set).delete(rest::secrets::remove),
        )
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{server}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/.well-known/oauth-protected-resource", get(oauth::metadata))
        .route("/.well-known/oauth-protected-resource/mcp", get(oauth::metadata))
        .route("/.well-known/oauth-protected-resource/mcp/{server}", get(oauth::metadata))
        .route("/v1/usage", get(admin::own_usage))
        .route("/healthz", get(ops::healthz))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method);
    let ops = if with_ops { ops_routes() } else { Router::new() };
    // Where operators' pages are, theirs says more.
    let callers = if with_ops { callers } else { callers.route("/readyz", get(ops::readyz)) };
    // What is for operators no page of another site may read.
    let pages = callers.clone().layer(auth::cors::layer()).merge(ops.clone());
    Routes::new(callers.merge(ops).with_state(front.clone()))
        .with_pages(pages.with_state(front.clone()), front)
}

/// The routes for operators, on a port of their own.
pub fn ops_router(front: Arc<Front>) -> Routes {
    Routes::new(ops_routes().fallback(error::no_such_path).with_state(front))
}

/// The routes for other replicas, on a port of their own.
pub fn replicas_router(front: Arc<Front>) -> Routes {
    let sent_on = Router::new()
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{server}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .layer(from_fn_with_state(front.clone(), replicas::prove))
        .fallback(error::no_such_path);
    Routes::new(sent_on.with_state(front))
}

fn ops_routes() -> Router<Arc<Front>> {
    Router::new()
        .route("/metrics", get(ops::metrics))
        .route("/readyz", get(ops::readyz_by_server))
        .merge(admin::routes())
        .method_not_allowed_fallback(error::no_such_method)
}
