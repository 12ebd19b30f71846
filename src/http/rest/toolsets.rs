//! Lists the toolsets that a caller may use, and their tools: `GET /v1/toolsets` and below.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::servers::{admit, json, with_rate_status};
use crate::gateway::{check_room, hold_response};
use crate::http::auth::Authenticated;
use crate::http::error::HttpResult;
use crate::http::rendered_list::body_of;
use crate::http::state::AppState;
use crate::http::toolset_list::{self, ToolsetForm};
use crate::http::unsent::hold;
use crate::toolsets::Toolset;

#[derive(Serialize, JsonSchema)]
pub(crate) struct ToolsetView {
    id: String,
    /// The patterns of its tools, as the operator wrote them.
    tools: Vec<String>,
    /// Whether MCP clients search for its tools.
    search: bool,
}

impl ToolsetView {
    pub(crate) fn of(toolset: &Arc<Toolset>) -> Self {
        Self {
            id: toolset.id().to_string(),
            tools: toolset.patterns().iter().map(ToString::to_string).collect(),
            search: toolset.is_searched(),
        }
    }
}

pub(crate) async fn list_toolsets(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
) -> HttpResult {
    let rate_status = admit(&caller).await?;
    let views: Vec<_> = app.gateway.toolsets(&caller).map(|it| ToolsetView::of(&it)).collect();
    Ok(json(&BTreeMap::from([("toolsets", views)]), &rate_status))
}

/// Lists a toolset's tools, under their names there.
pub(crate) async fn list_tools(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(toolset) = path?;
    check_room(&caller.tenant)?;
    let rate_status = admit(&caller).await?;
    let caller = app.gateway.within(caller, &toolset)?;
    let toolset = caller.toolset.as_deref().expect("the caller is within a toolset");
    let listed = toolset_list::list(&app, &caller, toolset, ToolsetForm::Rest, Instant::now());
    let (list, left_out) = listed.await;
    let page = list.page(None).expect("there is a first page");
    let end = match left_out.meta(&app.gateway, &caller) {
        Some(meta) => format!(",\"_meta\":{meta}}}"),
        None => "}".to_owned(),
    };
    let held = hold_response(&caller.tenant, page.len() + end.len())?;
    let json = [(header::CONTENT_TYPE, "application/json")];
    let mut response = with_rate_status((json, body_of([page, Bytes::from(end)])), &rate_status);
    hold(&mut response, Some(held));
    Ok(response)
}
