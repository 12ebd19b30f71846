//! A tenant's own connection to a server that wants OAuth: `/v1/servers/{server}/connect`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::secrets::require_key;
use crate::gateway::Caller;
use crate::http::admin::ok;
use crate::http::auth::Authenticated;
use crate::http::auth::store_quota::StorePermit;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::registry::Server;
use crate::store::Actor;
use crate::tenants::connections::{ConnectError, ConnectionView, Connections};

/// The most such requests at once. Some of them ask an authorization server.
pub(crate) const REQUESTS_MAX: usize = 8;

/// A tenant's connection to a server.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Connection {
    server: String,
    tenant: String,
    /// Whether a person of the tenant has agreed.
    connected: bool,
    /// When that person has agreed.
    connected_at: Option<Timestamp>,
    /// The page at which a person of the tenant agrees, signed in with a key of the tenant.
    url: String,
}

impl Connection {
    pub(crate) fn new(
        connections: &Connections,
        caller: &Caller,
        server: &Server,
        view: &ConnectionView,
    ) -> Self {
        let tenant = &caller.tenant.id;
        Self {
            server: server.id().to_string(),
            tenant: tenant.name().to_string(),
            connected: view.connected.is_some(),
            connected_at: view.connected.and_then(|at| Timestamp::from_millisecond(at).ok()),
            url: connections.connect_url(tenant, server.id()),
        }
    }
}

/// Shows whether the tenant is connected, and the page at which it connects itself.
pub(crate) async fn show(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
    let (connections, server) = of(&app, &caller, &server)?;
    let _permit = StorePermit::of(&app.connect_requests, &caller, server.id().as_str()).await?;
    let view = connections.view(&caller.tenant.id, server.id()).await?;
    ok(&Connection::new(connections, &caller, &server, &view))
}

/// Ends the connection, and has its tokens revoked.
pub(crate) async fn disconnect(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let Path(server) = path?;
    require_key(&headers)?;
    end(&app, &caller, &server).await
}

pub(crate) async fn end(app: &AppState, caller: &Caller, server: &str) -> HttpResult {
    let (connections, server) = of(app, caller, server)?;
    let _permit = StorePermit::of(&app.connect_requests, caller, server.id().as_str()).await?;
    let tenant = &caller.tenant.id;
    if !connections.disconnect(&Actor::tenant(tenant), tenant, server.id()).await? {
        let what = format!("connection of tenant `{tenant}` to server `{}`", server.id());
        return Err(HttpError::NotFound(what));
    }
    ok(&Connection::new(connections, caller, &server, &ConnectionView { connected: None }))
}

/// Returns a server that the caller may use, and to which tenants connect themselves.
pub(crate) fn of<'a>(
    app: &'a AppState,
    caller: &Caller,
    server: &str,
) -> Result<(&'a Connections, Arc<Server>), HttpError> {
    let server = app.gateway.server(caller, server)?;
    match &app.connections {
        Some(connections) if server.config().needs_connection() => Ok((connections, server)),
        _ => Err(HttpError::NotFound(format!(
            "connection to make: server `{}` takes no consent of tenants",
            server.id()
        ))),
    }
}

impl From<ConnectError> for HttpError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Store(error) => Self::Store(error),
            ConnectError::Failed(error) => {
                crate::gateway::CallError::unavailable(error.to_string(), RETRY_AFTER).into()
            }
            other => Self::InvalidRequest(other.to_string()),
        }
    }
}

/// After this time an authorization server may be asked again.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(5);
