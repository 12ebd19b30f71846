//! What load balancers and monitoring ask.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use super::Front;

/// Alive: this answers as long as the process does anything at all.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready for traffic. A server that fails does not make the gateway unready: the others still work.
pub(super) async fn readyz(State(front): State<Arc<Front>>) -> impl IntoResponse {
    if front.draining.load(Ordering::Acquire) {
        (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
    } else if !front.gateway.registry().is_settled() {
        (StatusCode::SERVICE_UNAVAILABLE, "starting: not every server has been tried yet\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

/// Prometheus.
pub(super) async fn metrics(State(front): State<Arc<Front>>) -> impl IntoResponse {
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], front.gateway.metrics().render())
}
