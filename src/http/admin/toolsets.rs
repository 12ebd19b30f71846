//! The toolsets, and their tools as their callers see them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::json;
use serde_json::value::RawValue;

use super::ok;
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::rest::server_view::ready;
use crate::http::rest::toolsets::ToolsetView;
use crate::http::state::AppState;
use crate::http::toolset_list;

pub(super) async fn list(State(app): State<Arc<AppState>>, _: Administrator) -> HttpResult {
    let toolsets = app.gateway.all_toolsets().all();
    ok(&json!({"toolsets": toolsets.iter().map(ToolsetView::of).collect::<Vec<_>>()}))
}

/// Lists the tools of a toolset, without those of servers that are not ready.
pub(super) async fn tools(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(id) = path?;
    let toolset = app.gateway.all_toolsets().get(&id);
    let toolset = toolset.ok_or_else(|| HttpError::NotFound(format!("toolset `{id}`")))?;
    let servers = app.gateway.registry().servers().into_iter().filter_map(|server| {
        let ready = server.backends().iter().find_map(|backend| ready(backend))?;
        Some((server, ready.tools.clone()))
    });
    let servers = servers.filter(|(server, _)| toolset.has_part_of(server.id().as_str()));
    let tools = toolset_list::tools(&toolset, &servers.collect());
    let tools = tools.into_iter().filter_map(|(_, it)| RawValue::from_string(it).ok());
    ok(&json!({"tools": tools.collect::<Vec<_>>()}))
}
