//! The HTTP front end. Every route is on this page.

mod auth;
mod body;
mod cors;
mod error;
mod mcp;
mod ops;
mod origin;
mod patience;
mod rest;
pub mod server;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::gateway::Gateway;
use crate::policy::Policy;
use crate::seal::Sealer;
use crate::tenant::Tenant;

use mcp::{Seats, Sessions};
use origin::Web;

pub use cors::Routes;

/// What the handlers share.
pub struct Front {
    gateway: Arc<Gateway>,
    /// Who callers without a key are, if they are anybody.
    anonymous: Option<Arc<Tenant>>,
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
    seats: Arc<Seats>,
}

impl Front {
    /// A front end before `gateway`.
    pub fn new(gateway: Arc<Gateway>, config: &Config) -> Self {
        let sealer = Arc::new(Sealer::new(&config.session_keys));
        Self {
            gateway,
            anonymous: config
                .auth
                .anonymous_tenant
                .clone()
                .map(|id| Arc::new(Tenant::new(id, Policy::unlimited()))),
            web: Web::new(config),
            max_body: config.max_body,
            draining: AtomicBool::new(false),
            closing: CancellationToken::new(),
            sessions: Sessions::new(sealer.clone()),
            sealer,
            seats: Arc::default(),
        }
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
        loop {
            tokio::time::sleep(mcp::SWEEP_EVERY).await;
            self.sessions.sweep();
        }
    }
}

/// The routes for callers, and with them those for operators unless these have a port of their own.
pub fn router(front: Arc<Front>, with_ops: bool) -> Routes {
    let callers = Router::new()
        .route("/v1/servers", get(rest::list_servers))
        .route("/v1/servers/{server}", get(rest::show_server))
        .route("/v1/servers/{server}/tools", get(rest::list_tools))
        .route("/v1/servers/{server}/tools/{tool}", post(rest::call_tool))
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{server}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(ops::readyz))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method);
    let ops = if with_ops { ops_routes() } else { Router::new() };
    // What is for operators no page of another site may read.
    let pages = callers.clone().layer(cors::layer()).merge(ops.clone());
    Routes::new(callers.merge(ops).with_state(front.clone()))
        .with_pages(pages.with_state(front.clone()), front)
}

/// The routes for operators, on a port of their own.
pub fn ops_router(front: Arc<Front>) -> Routes {
    Routes::new(ops_routes().fallback(error::no_such_path).with_state(front))
}

fn ops_routes() -> Router<Arc<Front>> {
    Router::new()
        .route("/metrics", get(ops::metrics))
        .method_not_allowed_fallback(error::no_such_method)
}
