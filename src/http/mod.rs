//! The HTTP front end. Every route is on this page.

mod auth;
mod error;
mod ops;
mod patience;
mod rest;
pub mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::{get, post};

use crate::config::Config;
use crate::gateway::Gateway;
use crate::ids::TenantId;

/// What the handlers share.
pub struct Front {
    gateway: Arc<Gateway>,
    /// Who callers without a key are, if they are anybody.
    anonymous: Option<TenantId>,
    /// Whether only this machine is served.
    is_local: bool,
    /// The largest request body.
    max_body: usize,
    draining: AtomicBool,
}

impl Front {
    /// A front end before `gateway`.
    pub fn new(gateway: Arc<Gateway>, config: &Config) -> Self {
        Self {
            gateway,
            anonymous: config.auth.anonymous_tenant.clone(),
            is_local: config.listen.ip().is_loopback(),
            max_body: config.max_body,
            draining: AtomicBool::new(false),
        }
    }

    /// From now on `/readyz` sends new traffic elsewhere.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }
}

/// The routes for callers, and with them those for operators unless these have a port of their own.
pub fn router(front: Arc<Front>, with_ops: bool) -> Router {
    let routes = Router::new()
        .route("/v1/servers", get(rest::list_servers))
        .route("/v1/servers/{server}", get(rest::show_server))
        .route("/v1/servers/{server}/tools", get(rest::list_tools))
        .route("/v1/servers/{server}/tools/{tool}", post(rest::call_tool))
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(ops::readyz));
    let routes = if with_ops { routes.merge(ops_routes()) } else { routes };
    routes
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(front)
}

/// The routes for operators, on a port of their own.
pub fn ops_router(front: Arc<Front>) -> Router {
    ops_routes()
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(front)
}

fn ops_routes() -> Router<Arc<Front>> {
    Router::new().route("/metrics", get(ops::metrics))
}
