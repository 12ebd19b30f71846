//! The servers with their tools, and the calls that run now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ok;
use crate::backend::instance::tools::Tool;
use crate::gateway::CallError;
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::rest::server_view::{ServerView, Viewer, ready};
use crate::http::state::AppState;
use crate::registry::Server;

/// The calls in one answer: by default, and at most.
const CALLS: usize = 100;
const CALLS_MAX: usize = 1000;
/// When to ask again for the tools of a server that is not ready.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Shows all servers in full.
pub(super) async fn servers(State(app): State<Arc<AppState>>, _: Administrator) -> HttpResult {
    let registry = app.gateway.registry();
    let view = |server: &Arc<Server>| ServerView::new(registry, server.clone(), &Viewer::Operator);
    let left_out = registry.left_out();
    let left_out = left_out.iter().map(|server| ServerView::left_out(server, true));
    let servers: Vec<_> = registry.servers().iter().map(view).chain(left_out).collect();
    ok(&json!({"servers": servers}))
}

/// Lists the tools of a server, as the server defines them; of one with several processes, those
/// of any that is ready.
pub(super) async fn tools(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(id) = path?;
    let server = app.gateway.registry().get(&id);
    let server = server.ok_or_else(|| HttpError::NotFound(format!("server `{id}`")))?;
    let Some(ready) = server.backends().iter().find_map(|backend| ready(backend)) else {
        let reason = format!("no process of `{id}` is ready, so its tools are not known");
        return Err(CallError::unavailable(reason, RETRY_AFTER).into());
    };
    let tools: Vec<_> = ready.tools.iter().map(Tool::definition).collect();
    ok(&BTreeMap::from([("tools", tools)]))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallsParams {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// A call that a server works on.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LiveCallView {
    id: String,
    tenant: String,
    server: String,
    state: &'static str,
    since: Option<Timestamp>,
}

/// Lists the calls that servers work on now, the oldest first.
pub(super) async fn calls(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    params: Result<Query<CallsParams>, QueryRejection>,
) -> HttpResult {
    let limit = params?.0.limit.unwrap_or(CALLS);
    if !(1..=CALLS_MAX).contains(&limit) {
        return Err(HttpError::invalid(format!("`limit` must be from 1 to {CALLS_MAX}")));
    }
    let mut live = vec![];
    for server in app.gateway.registry().servers() {
        for backend in server.backends() {
            for instance in backend.instances() {
                live.extend(instance.live_calls().into_iter().map(|it| (server.clone(), it)));
            }
        }
    }
    live.sort_unstable_by_key(|(_, call)| call.call.made());
    let (count, oldest) = (live.len(), live.into_iter().take(limit));
    let calls: Vec<_> = oldest
        .map(|(server, live)| LiveCallView {
            id: live.call.to_string(),
            tenant: live.tenant.name().to_string(),
            server: server.id().to_string(),
            state: live.state.as_str(),
            since: Timestamp::try_from(live.call.made()).ok(),
        })
        .collect();
    ok(&json!({"calls": calls, "count": count}))
}
