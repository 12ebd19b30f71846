//! A tenant's own calls, for its page: those that wait or run now at this replica, and those of the
//! last while that failed, were refused or were slow.

use std::sync::Arc;

use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::common::ids::{CallId, TenantId};
use crate::events::CallTags;
use crate::http::admin::ok;
use crate::http::auth::Authenticated;
use crate::http::error::HttpResult;
use crate::http::rest::recent::record_json;
use crate::http::rest::servers::admit;
use crate::http::state::AppState;
use crate::registry::Registry;

/// Calls in each list of the answer.
const CALLS: usize = 100;

/// A call that waits or runs.
#[derive(Serialize)]
struct OpenCall {
    id: String,
    server: String,
    tool: Option<String>,
    state: &'static str,
    since: Option<Timestamp>,
    labels: Vec<String>,
}

pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
) -> HttpResult {
    admit(&caller).await?;
    let tenant = &caller.tenant.id;
    let mut open = open_calls(app.gateway.registry(), tenant);
    let count = open.len();
    open.truncate(CALLS);
    let calls = app.recent.latest_of(tenant, CALLS);
    let calls: Vec<_> = calls.iter().map(|call| record_json(call)).collect();
    ok(&json!({"open": open, "open_count": count, "calls": calls}))
}

/// Returns the tenant's calls that wait or run, the oldest first.
fn open_calls(registry: &Registry, tenant: &TenantId) -> Vec<OpenCall> {
    let mut open = vec![];
    for server in registry.servers() {
        let shared_or_owned = server.backends();
        let cells = shared_or_owned.iter().flat_map(|backend| backend.cells());
        for backend in shared_or_owned.iter().cloned().chain(cells.map(|(_, cell)| cell)) {
            let new = |id: CallId, tool: Option<&str>, state, tags: Option<&CallTags>| OpenCall {
                id: id.to_string(),
                server: server.id().to_string(),
                tool: tool.map(str::to_owned),
                state,
                since: Timestamp::try_from(id.made()).ok(),
                labels: tags.map(|tags| tags.labels.clone()).unwrap_or_default(),
            };
            let waiting = backend.queue().waiting_of(tenant).into_iter().filter_map(|it| it.info);
            open.extend(
                waiting.map(|it| new(it.call, Some(&it.target), "waiting", it.tags.as_deref())),
            );
            let running = backend.instances().into_iter().flat_map(|it| it.live_calls());
            open.extend(running.filter(|live| live.tenant == *tenant).map(|live| {
                let attempt = live.attempt.as_ref();
                let tool = attempt.map(|it| it.target.name());
                let tags = attempt.and_then(|it| it.tags.as_deref());
                new(live.call, tool, live.state.as_str(), tags)
            }));
        }
    }
    open.sort_by(|one, other| (one.since, &one.id).cmp(&(other.since, &other.id)));
    // One that got its slot meanwhile has been seen twice.
    open.dedup_by(|next, one| next.id == one.id);
    open
}
