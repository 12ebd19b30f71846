//! The live pages: `/dashboard` for operators, `/me` for a tenant, and `/`, which leads there.
//!
//! - `web/`: the pages themselves, which `build.rs` compresses; [`assets`] serves them
//! - [`sign_in`]: a key becomes a [`session`]
//! - [`connect`]: a tenant connects itself to a server that wants OAuth
//! - [`guard`]: who may ask for what; the pages have no API of their own, but use those of
//!   administrators and of callers behind this guard

mod assets;
mod connect;
mod guard;
mod own_calls;
pub(crate) mod session;
pub(crate) mod sign_in;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;

use self::session::Page;
use super::admin;
use super::auth::origin::{CallersPage, OperatorsPage};
use super::headers::accepts;
use super::state::AppState;

/// The changes that the operators' page may make. Reading is not bounded.
const OPERATORS_VERBS: &[(Method, &str)] = &[
    (Method::DELETE, "/dashboard/admin/v1/keys/{key}"),
    (Method::DELETE, "/dashboard/admin/v1/calls/{id}"),
    (Method::POST, "/dashboard/admin/v1/servers/{server}/pins"),
    (Method::POST, "/dashboard/admin/v1/servers/{server}/pause"),
    (Method::POST, "/dashboard/admin/v1/servers/{server}/resume"),
    (Method::POST, "/dashboard/admin/v1/servers/{server}/instances/{instance}/replace"),
    (Method::POST, "/dashboard/admin/v1/tenants/{tenant}/servers/{server}/tools/{tool}"),
];

/// The changes that a tenant's page may make.
const TENANTS_VERBS: &[(Method, &str)] = &[(Method::POST, "/me/v1/servers/{server}/tools/{tool}")];

/// Returns the routes of the operators' page.
pub(super) fn operators(app: &Arc<AppState>) -> Router<Arc<AppState>> {
    let api = admin::routes().route_layer(from_fn_with_state(app.clone(), guard::operators));
    let session = get(|app, parts| sign_in::show(app, Page::Operators, parts))
        .post(|app, request| sign_in::sign_in(app, Page::Operators, request))
        .delete(|app, parts| sign_in::sign_out(app, Page::Operators, parts));
    Router::new()
        .route("/dashboard", get(async |_: OperatorsPage| assets::page("dashboard.html")))
        .route("/dashboard/web/{*file}", get(async |_: OperatorsPage, file| assets::file(file)))
        .route("/dashboard/session", session)
        .nest("/dashboard", api)
}

/// Returns the routes of the tenants' page, given those of callers.
pub(super) fn tenants(
    app: &Arc<AppState>,
    callers: Router<Arc<AppState>>,
) -> Router<Arc<AppState>> {
    let api = callers.route("/calls", get(own_calls::list));
    let api = api.route_layer(from_fn_with_state(app.clone(), guard::tenants));
    let session = get(|app, parts| sign_in::show(app, Page::Tenants, parts))
        .post(|app, request| sign_in::sign_in(app, Page::Tenants, request))
        .delete(|app, parts| sign_in::sign_out(app, Page::Tenants, parts));
    Router::new()
        .route("/me", get(async |_: CallersPage| assets::page("me.html")))
        .route("/me/web/{*file}", get(async |_: CallersPage, file| assets::file(file)))
        .route("/me/session", session)
        .merge(connect::routes())
        .nest("/me", api)
}

/// Leads from `/` of a port where callers are served.
pub(super) fn callers_root(with_ops: bool) -> Router<Arc<AppState>> {
    Router::new().route(
        "/",
        get(async move |_: CallersPage, headers: HeaderMap| {
            let page = if with_ops { Page::Operators } else { Page::Tenants };
            let pages = if with_ops { "/dashboard (operators), /me (tenants)" } else { "/me" };
            root(&headers, page, &format!("REST /v1, MCP /mcp, described at /docs\nlive: {pages}"))
        }),
    )
}

/// Leads from `/` of the operators' own port.
pub(super) fn operators_root() -> Router<Arc<AppState>> {
    let text = "admin API /admin/v1, metrics /metrics\nlive: /dashboard";
    let handler =
        async move |_: OperatorsPage, headers: HeaderMap| root(&headers, Page::Operators, text);
    Router::new().route("/", get(handler))
}

/// Sends a browser to a page, and tells others what there is.
fn root(headers: &HeaderMap, page: Page, text: &str) -> Response<Body> {
    if accepts(headers, "text/html") {
        return Redirect::to(page.path()).into_response();
    }
    let vary = [(header::VARY, "Accept")];
    let version = env!("CARGO_PKG_VERSION");
    (vary, format!("Trunkline {version}, an MCP gateway\n{text}\n")).into_response()
}
