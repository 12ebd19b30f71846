//! Lists the servers and tools that a caller may use: `GET /v1/servers` and below.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use super::server_view::{ServerView, Viewer};
use crate::backend::Backend;
use crate::backend::instance::tools::{Tool, ToolSet};
use crate::gateway::{CallError, Caller, check_room, hold_response};
use crate::http::auth::Authenticated;
use crate::http::error::HttpResult;
use crate::http::headers::{SESSION_ID, add_rate_status};
use crate::http::list_cache::{ListForm, ListKey};
use crate::http::rendered_list::{RenderedList, body_of};
use crate::http::state::AppState;
use crate::http::unsent::hold;
use crate::protocol::mcp::results::Caching;
use crate::registry::Server;
use crate::tenants::limits::{Cost, RateStatus};

pub(crate) async fn list_servers(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
) -> HttpResult {
    check_room(&caller.tenant)?;
    let rate_status = admit(&caller).await?;
    let (registry, viewer) = (app.gateway.registry(), viewer(&app, &caller, &headers));
    let servers = app.gateway.servers(&caller);
    let views = servers.map(|server| ServerView::new(registry, server, &viewer));
    let left_out = registry.left_out();
    let left_out = left_out.iter().filter(|server| caller.tenant.sees(server.id.as_str()));
    let views = views.chain(left_out.map(|server| ServerView::left_out(server, false)));
    Ok(json(&BTreeMap::from([("servers", views.collect::<Vec<_>>())]), &rate_status))
}

pub(crate) async fn show_server(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let Path(server) = path?;
    let rate_status = admit(&caller).await?;
    let registry = app.gateway.registry();
    let found = app.gateway.server(&caller, &server);
    let left_out = registry.left_out();
    let left_out = left_out.iter().find(|it| it.id.as_str() == server);
    let left_out = left_out.filter(|_| found.is_err() && caller.tenant.sees(&server));
    let view = match left_out {
        Some(server) => ServerView::left_out(server, false),
        None => ServerView::new(registry, found?, &viewer(&app, &caller, &headers)),
    };
    Ok(json(&view, &rate_status))
}

/// Charges a list to its tenant.
pub(crate) async fn admit(caller: &Caller) -> Result<RateStatus, CallError> {
    Ok(caller.tenant.admit(Cost::List).await?.take_rate_status())
}

/// Returns the viewer: a request that names its session sees the session's own processes.
fn viewer<'a>(app: &AppState, caller: &'a Caller, headers: &HeaderMap) -> Viewer<'a> {
    let token = headers.get(&SESSION_ID).and_then(|token| token.to_str().ok());
    let session = token.and_then(|token| app.sessions.id_in(&caller.tenant.id, token));
    Viewer::Caller { caller, session }
}

/// Lists one server's tools, as the server defines them.
pub(crate) async fn list_tools(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
    check_room(&caller.tenant)?;
    let rate_status = admit(&caller).await?;
    let server = app.gateway.server(&caller, &server)?;
    let until = |backend: &Backend| Instant::now() + backend.timeout();
    let tools = match caller.known_tools(&server) {
        Some(known) => known,
        None => app.gateway.ready_or_start(&caller, server.clone(), until).await?.1.tools.clone(),
    };
    let key = list_key(&app, &caller, ListForm::Rest, &[(&server, &tools)]);
    let render = || {
        let tools = granted(&caller, server.id().as_str(), &tools);
        let items: Vec<_> = tools.map(|tool| tool.definition().get()).collect();
        RenderedList::whole("tools", &items, Caching::default())
    };
    let of = (&*caller.tenant, app.gateway.offload());
    let list = app.lists.get_or_render(key, of, tools.bytes(), render).await;
    let page = list.page(None).expect("there is a first page");
    let held = hold_response(&caller.tenant, page.len())?;
    let body = body_of([page, Bytes::from_static(b"}")]);
    let json = [(header::CONTENT_TYPE, "application/json")];
    let mut response = with_rate_status((json, body), &rate_status);
    hold(&mut response, Some(held));
    Ok(response)
}

/// Returns the key of a list of these servers' tools, for a caller.
pub(crate) fn list_key(
    app: &AppState,
    caller: &Caller,
    form: ListForm,
    servers: &[(&Arc<Server>, &Arc<ToolSet>)],
) -> ListKey {
    let servers = servers.iter().map(|(server, tools)| (server.id(), tools.version()));
    app.lists.key(form, &caller.tenant.policy.servers, servers)
}

/// Returns the tools that a caller may call.
pub(crate) fn granted<'a>(
    caller: &'a Caller,
    server: &'a str,
    tools: &'a ToolSet,
) -> impl Iterator<Item = &'a Tool> {
    tools.iter().filter(move |tool| caller.may_call(server, tool.name()))
}

pub(super) fn json(body: &impl Serialize, rate_status: &RateStatus) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    with_rate_status(([(header::CONTENT_TYPE, "application/json")], body), rate_status)
}

pub(super) fn with_rate_status(
    response: impl IntoResponse,
    rate_status: &RateStatus,
) -> Response<Body> {
    let mut response = response.into_response();
    add_rate_status(response.headers_mut(), rate_status);
    response
}
