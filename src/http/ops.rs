//! What load balancers and monitoring ask.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use super::Front;
use crate::backend::{Backend, State as ServerState};
use crate::config::Start;

type Answer = (StatusCode, String);

/// Alive: this answers as long as the process does anything at all.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready for traffic. A server that fails does not make the gateway unready: the others still work. Anybody may ask: how
/// many servers are not ready is told, not which.
pub(super) async fn readyz(State(front): State<Arc<Front>>) -> Answer {
    readiness(&front, |broken, all| {
        let are = if broken.len() == 1 { "is" } else { "are" };
        format!("{} of {all} servers {are} not\n", broken.len())
    })
}

/// The same for operators, with a line for each server that is not ready.
pub(super) async fn readyz_by_server(State(front): State<Arc<Front>>) -> Answer {
    readiness(&front, |broken, _| broken.iter().map(|server| describe(server)).collect())
}

/// `tell` says in further lines which of so many servers are not ready. The first line stays as it is.
fn readiness(front: &Front, tell: impl FnOnce(&[Arc<Backend>], usize) -> String) -> Answer {
    if front.draining.load(Ordering::Acquire) {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned());
    }
    let registry = front.gateway.registry();
    if !registry.is_settled() {
        let starting = "starting: not every server has been tried yet\n";
        return (StatusCode::SERVICE_UNAVAILABLE, starting.to_owned());
    }
    // Of the others none has to run before it is called.
    let eager = registry.shared().filter(|server| server.config().start == Start::Eager);
    let eager: Vec<_> = eager.collect();
    let is_broken = |server: &&Arc<Backend>| !matches!(server.state(), ServerState::Ready(_));
    let broken: Vec<_> = eager.iter().filter(is_broken).cloned().collect();
    let told = if broken.is_empty() { String::new() } else { tell(&broken, eager.len()) };
    (StatusCode::OK, format!("ready\n{told}"))
}

/// `search: quarantined, down since 2026-11-17T10:00:00Z: it ended with exit code 3`
fn describe(server: &Backend) -> String {
    let mut line = format!("{}: {}", server.id(), server.state().as_str());
    if let Some(down) = server.down() {
        line += &format!(", down since {:.0}", down.since);
        line.extend(down.reason.iter().flat_map(|reason| [": ", &**reason]));
    }
    line + "\n"
}

/// Prometheus.
pub(super) async fn metrics(State(front): State<Arc<Front>>) -> impl IntoResponse {
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], front.gateway.metrics().render())
}
