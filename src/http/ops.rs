//! Endpoints of load balancers and monitoring. They need no key, so a web page that rebinds its DNS
//! name is refused by its `Host`, as everywhere.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::any;
use prometheus::proto::MetricFamily;
use tokio::time::Instant;

use super::auth::origin::{CallersPage, OperatorsPage};
use super::error::served_to_operators;
use super::state::AppState;
use crate::backend::{Backend, RunState};
use crate::common::ids::TenantId;
use crate::config::Start;
use crate::telemetry::tenants::{OTHER, TenantCounts, TenantReading};
use crate::tenants::Tenant;

type Readiness = (StatusCode, String);

/// Returns the routes that say where the pages of operators are, if that is elsewhere.
pub(super) fn elsewhere() -> Router<Arc<AppState>> {
    Router::new()
        .route("/metrics", any(served_to_operators))
        .route("/admin/{*path}", any(served_to_operators))
        .route("/dashboard", any(served_to_operators))
}

/// Answers as long as the process does anything at all.
pub(super) async fn healthz(_: CallersPage) -> &'static str {
    "ok\n"
}

/// Says whether the gateway is ready for traffic. A failed server does not make it unready: the
/// others still work. Anybody may ask, so the answer counts the failed servers and names none.
pub(super) async fn readyz(State(app): State<Arc<AppState>>, _: CallersPage) -> Readiness {
    let store = if app.store.failing().is_empty() { "" } else { "the store is away\n" };
    readiness(&app, store, |broken, all| {
        let are = if broken.len() == 1 { "is" } else { "are" };
        format!("{} of {all} servers {are} not\n", broken.len())
    })
}

/// Says whether the gateway is ready, for operators: with a line for each failed server, and for
/// each use of the store that fails.
pub(super) async fn readyz_for_operators(
    State(app): State<Arc<AppState>>,
    _: OperatorsPage,
) -> Readiness {
    let failing = app.store.failing().into_iter();
    let store: String =
        failing.map(|(what, why)| format!("store: away for {what}: {why}\n")).collect();
    readiness(&app, &store, by_server)
}

/// Says the same where operators have no port of their own, without the causes of the store: they
/// contain paths and words of the database, and anybody may ask. The log has them.
pub(super) async fn readyz_for_all(
    State(app): State<Arc<AppState>>,
    _: OperatorsPage,
) -> Readiness {
    let failing = app.store.failing().into_keys();
    let store: String = failing.map(|what| format!("store: away for {what}\n")).collect();
    readiness(&app, &store, by_server)
}

fn by_server(broken: &[Arc<Backend>], _: usize) -> String {
    broken.iter().map(|server| line(server)).collect()
}

/// Returns the readiness; `describe` adds lines about the failed ones of all eager servers. A store
/// that is away does not make the gateway unready: known keys work, and other replicas have no
/// other store.
fn readiness(
    app: &AppState,
    store: &str,
    describe: impl FnOnce(&[Arc<Backend>], usize) -> String,
) -> Readiness {
    if app.draining.load(Ordering::Acquire) {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned());
    }
    let registry = app.gateway.registry();
    if !registry.is_settled() {
        let starting = "starting: not every server has been tried yet\n";
        return (StatusCode::SERVICE_UNAVAILABLE, starting.to_owned());
    }
    // A lazy server, and one that is not shared, runs only when it is called.
    let eager = registry.shared().filter(|server| server.config().start == Start::Eager);
    let eager: Vec<_> = eager.collect();
    let is_broken = |server: &&Arc<Backend>| !matches!(server.state(), RunState::Ready(_));
    let broken: Vec<_> = eager.iter().filter(is_broken).cloned().collect();
    let lines = if broken.is_empty() { String::new() } else { describe(&broken, eager.len()) };
    (StatusCode::OK, format!("ready\n{store}{lines}"))
}

/// Describes a server: `search: quarantined, down since 2026-11-17T10:00:00Z: exit code 3`.
fn line(server: &Backend) -> String {
    let mut text = format!("{}: {}", server.id(), server.state().as_str());
    if let Some(down) = server.down() {
        text += &format!(", down since {:.0}", down.since);
        text.extend(down.reason.iter().flat_map(|reason| [": ", &**reason]));
    }
    text + "\n"
}

/// Renders the metrics for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<AppState>>, _: OperatorsPage) -> Response<Body> {
    render_metrics(&app, tenant_name)
}

/// Renders the metrics where operators have no port of their own: anybody may ask, so no tenant is
/// named.
pub(super) async fn metrics_for_all(
    State(app): State<Arc<AppState>>,
    _: OperatorsPage,
) -> Response<Body> {
    render_metrics(&app, |_| OTHER)
}

fn render_metrics(app: &AppState, name: impl Fn(&Tenant) -> &str) -> Response<Body> {
    refresh(app, name);
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], app.gateway.metrics().render()).into_response()
}

impl AppState {
    /// Reads all metrics, as `/metrics` shows them.
    pub fn read_metrics(&self) -> Vec<MetricFamily> {
        if self.has_ops_listener {
            refresh(self, tenant_name)
        } else {
            refresh(self, |_| OTHER)
        }
        self.gateway.metrics().gather()
    }
}

fn tenant_name(tenant: &Tenant) -> &str {
    tenant.id.name().as_str()
}

/// Shows what is counted elsewhere.
fn refresh(app: &AppState, name: impl Fn(&Tenant) -> &str) {
    let metrics = app.gateway.metrics();
    metrics.show_lost_events(app.gateway.events().lost());
    metrics.store_up().set(i64::from(app.store.failing().is_empty()));
    let budgets = app.directory.budgets();
    let named = [
        ("unsent", &budgets.unsent),
        ("requests", &budgets.requests),
        ("keeping", &budgets.keeping),
    ];
    for (name, budget) in named {
        metrics.show_budget(name, budget.held(), budget.refused());
    }
    let waiting = show_waiting(app);
    let reading = |tenant: &Arc<Tenant>| TenantReading {
        unique: tenant.id.unique_text(),
        name: name(tenant).to_owned(),
        counts: tenant_counts(tenant, &waiting),
    };
    metrics.show_tenants(app.directory.tenants().iter().map(reading).collect());
}

/// Shows the longest wait of each server. Returns how many calls of each tenant wait.
fn show_waiting(app: &AppState) -> HashMap<TenantId, usize> {
    let mut by_tenant = HashMap::new();
    for server in app.gateway.registry().servers() {
        let mut oldest: Option<Instant> = None;
        for waiting in server.backends().iter().flat_map(|backend| backend.queue().waiting()) {
            *by_tenant.entry(waiting.tenant).or_default() += waiting.calls;
            oldest = Some(oldest.map_or(waiting.since, |oldest| oldest.min(waiting.since)));
        }
        let longest = oldest.map_or(Duration::ZERO, |oldest| oldest.elapsed());
        app.gateway.metrics().show_longest_wait(server.id().as_str(), longest);
    }
    by_tenant
}

fn tenant_counts(tenant: &Tenant, waiting: &HashMap<TenantId, usize>) -> TenantCounts {
    let used = tenant.meter.in_all();
    TenantCounts {
        ok: used.calls.saturating_sub(used.errors + used.tool_errors),
        tool_errors: used.tool_errors,
        errors: used.errors,
        refused: tenant.meter.refused(),
        in_flight: tenant.limits.in_flight().into(),
        waiting: waiting.get(&tenant.id).map_or(0, |calls| *calls as i64),
    }
}
