//! The HTTP front end. Every route is on this page, except those of `/admin/v1` (`admin`).

mod admin;
mod auth;
mod available;
mod body;
mod connection;
mod connections;
mod error;
mod headers;
mod list_cache;
mod mcp;
mod openapi;
mod ops;
mod pages;
mod problem;
mod rendered_list;
mod replicas;
mod rest;
pub mod server;
mod server_cards;
mod socket;
mod sse;
mod state;
mod toolset_list;
mod unsent;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};

pub use self::auth::origin::Routes;
pub use self::state::AppState;

/// Returns the routes of the REST API.
fn v1_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1/servers", get(rest::servers::list_servers))
        .route("/v1/servers/{server}", get(rest::servers::show_server))
        .route("/v1/servers/{server}/tools", get(rest::servers::list_tools))
        .route(
            "/v1/servers/{server}/tools/{tool}",
            post(rest::call::call_tool).fallback(error::tool_needs_post),
        )
        .route("/v1/toolsets", get(rest::toolsets::list_toolsets))
        .route("/v1/toolsets/{toolset}/tools", get(rest::toolsets::list_tools))
        .route(
            "/v1/toolsets/{toolset}/tools/{tool}",
            post(rest::call::call_tool).fallback(error::tool_needs_post),
        )
        .route("/v1/batch", post(rest::batch::run_batch))
        .route("/v1/servers/{server}/secrets", get(rest::secrets::list))
        .route(
            "/v1/servers/{server}/secrets/{name}",
            put(rest::secrets::set).delete(rest::secrets::remove),
        )
        .route(
            "/v1/servers/{server}/connect",
            get(rest::connect::show).delete(rest::connect::disconnect),
        )
        .route("/v1/limits", get(rest::limits::show))
        .route("/v1/batches/{id}", get(rest::batch::kept::show).delete(rest::batch::kept::cancel))
        .route("/v1/batches/{id}/result", get(rest::batch::kept::result))
        .route("/v1/calls", get(rest::calls::list))
        .route("/v1/calls/{id}", get(rest::calls::show).delete(rest::calls::cancel))
        .route("/v1/calls/{id}/result", get(rest::calls::result))
        .route("/v1/calls/{id}/explain", get(rest::calls::explain))
        .route("/v1/usage", get(admin::own_usage))
}

/// Returns the routes of callers; with `with_ops` also those of operators.
pub fn router(app: Arc<AppState>, with_ops: bool) -> Routes {
    let callers = v1_routes()
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{server}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        // Some clients insist on a path that ends in `/mcp`.
        .route("/servers/{server}/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/sse", get(mcp::sse_transport::open))
        .route("/sse/{server}", get(mcp::sse_transport::open))
        .route("/servers/{server}/sse", get(mcp::sse_transport::open))
        .route("/messages", post(mcp::sse_transport::post))
        .route("/mcp/t/{toolset}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/toolsets/{toolset}/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/.well-known/ai-catalog.json", get(server_cards::catalog))
        .route("/server-card", get(server_cards::card))
        .route("/mcp/{server}/server-card", get(server_cards::card))
        .route("/mcp/t/{toolset}/server-card", get(server_cards::card))
        .route("/.well-known/oauth-protected-resource", get(auth::resource_metadata))
        .route("/.well-known/oauth-protected-resource/mcp", get(auth::resource_metadata))
        .route("/.well-known/oauth-protected-resource/mcp/{server}", get(auth::resource_metadata))
        .route(
            "/.well-known/oauth-protected-resource/mcp/t/{toolset}",
            get(auth::resource_metadata),
        )
        .route(
            "/.well-known/oauth-protected-resource/toolsets/{toolset}/mcp",
            get(auth::resource_metadata),
        )
        .route(
            "/.well-known/oauth-protected-resource/servers/{server}/mcp",
            get(auth::resource_metadata),
        )
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(openapi::page))
        .route("/docs/docs.js", get(openapi::script))
        .route("/docs/docs.css", get(openapi::style))
        .route("/healthz", get(ops::healthz))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method);
    let ops = if with_ops {
        ops_routes(&app, get(ops::readyz_for_all), get(ops::metrics_for_all))
    } else {
        Router::new()
    };
    // The operators' `/readyz` says more; it takes the place of the callers' one.
    let callers = match with_ops {
        true => callers,
        false => callers.route("/readyz", get(ops::readyz)).merge(ops::elsewhere()),
    };
    // A page of another site may read the callers' routes, never the operators'.
    let ops = ops.merge(pages::callers_root(with_ops)).merge(pages::tenants(&app, v1_routes()));
    let pages = callers.clone().layer(auth::origin::cors_layer()).merge(ops.clone());
    let everyone = callers.merge(ops).with_state(app.clone());
    let unsent = app.listener_unsent();
    Routes::new(everyone, Some((pages.with_state(app.clone()), app)), unsent)
}

/// Returns the routes of operators, for a port of their own.
pub fn ops_router(app: Arc<AppState>) -> Routes {
    let unsent = app.listener_unsent();
    Routes::new(
        ops_routes(&app, get(ops::readyz_for_operators), get(ops::metrics))
            .merge(pages::operators_root())
            .fallback(error::no_such_path_for_operators)
            .with_state(app),
        None,
        unsent,
    )
}

/// Returns the routes of other replicas, for a port of their own.
pub fn replicas_router(app: Arc<AppState>) -> Routes {
    let forwarded = Router::new()
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{server}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/t/{toolset}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/v1/calls/{id}", get(rest::calls::show).delete(rest::calls::cancel))
        .route("/v1/calls/{id}/explain", get(rest::calls::explain))
        .merge(admin::forwarded_routes())
        .route("/v1/batches/{id}", delete(rest::batch::kept::cancel))
        .layer(from_fn_with_state(app.clone(), replicas::check_proof))
        .fallback(error::no_such_path_for_replicas);
    let unsent = app.listener_unsent();
    Routes::new(forwarded.with_state(app), None, unsent)
}

fn ops_routes(
    app: &Arc<AppState>,
    readyz: MethodRouter<Arc<AppState>>,
    metrics: MethodRouter<Arc<AppState>>,
) -> Router<Arc<AppState>> {
    Router::new()
        .route("/metrics", metrics)
        .route("/readyz", readyz)
        .merge(admin::routes())
        .merge(pages::operators(app))
        .method_not_allowed_fallback(error::no_such_method)
}
