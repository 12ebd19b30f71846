//! `resources/subscribe` and `resources/unsubscribe` of the legacy era. Modern clients use
//! [`crate::http::mcp::modern::listen`].

use std::sync::Arc;

use tokio::time::Instant;

use super::{EMPTY, session_not_found};
use crate::backend::changes::WATCHED_BY_TENANT_MAX;
use crate::backend::changes::mailbox::Lists;
use crate::gateway::CallError;
use crate::http::headers::{asked_timeout_of, refuse_key};
use crate::http::mcp::McpRequest;
use crate::http::mcp::modern::listen::watch_error;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::Session;
use crate::registry::{BackendRef, Server};
use crate::tenants::limits::Admission;

/// Watches a resource. Counts as a call: it makes the server work as much as one.
pub(super) async fn subscribe(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
    mut admission: Admission,
) -> Result<String, RpcError> {
    let watched = watch_admitted(request, session, &mut admission).await;
    watched.map_err(|error| error.charged(Some(&mut admission)))
}

async fn watch_admitted(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
    admission: &mut Admission,
) -> Result<String, RpcError> {
    let (http, caller) = (request.http, request.caller);
    let (server, uri) = resource(request, session)?;
    refuse_key(&http.headers)?;
    let timeout = asked_timeout_of(&server, &http.headers)?.unwrap_or(server.config().timeout);
    let deadline = http.arrived + timeout;
    let (backend, _) = http.app.gateway.ready(caller, server, |_| deadline).await?;
    let limits = &caller.tenant.limits;
    let admitted = limits.admit_to(admission, backend.id().as_str(), None).await;
    admitted.map_err(CallError::from)?;
    watch(request, session, &backend, &uri, deadline).await
}

async fn watch(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
    backend: &BackendRef,
    uri: &str,
    deadline: Instant,
) -> Result<String, RpcError> {
    let quota = &request.http.app.stream_quota;
    let subscription = session.subscribe(backend.changes(), Lists::ALL, quota)?;
    if subscription.watched_len() >= WATCHED_BY_TENANT_MAX {
        return Err(RpcError::invalid_params(format!(
            "a session can watch at most {WATCHED_BY_TENANT_MAX} resources of a server"
        )));
    }
    let watched = subscription.watch(uri, deadline).await;
    watched.map(|()| EMPTY.to_owned()).map_err(|error| watch_error(&error))
}

pub(super) fn unsubscribe(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let (server, uri) = resource(request, session)?;
    let backend = request.http.app.gateway.backend(request.caller, server)?;
    session.subscribe(backend.changes(), Lists::ALL, &request.http.app.stream_quota)?.unwatch(&uri);
    Ok(EMPTY.to_owned())
}

/// Returns the server of the resource that a request names, and the server's own URI for it.
fn resource(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
) -> Result<(Arc<Server>, String), RpcError> {
    if !session.is_owned_here() {
        return Err(session_not_found());
    }
    let uri = request.params.text("uri")?;
    let (server, uri) = request.http.scope.split_uri(&uri).ok_or_else(|| {
        RpcError::invalid_params("`params.uri` must be one that `resources/list` gives")
    })?;
    let found = request.http.app.gateway.server(request.caller, server)?;
    if !request.caller.may_use_all_of(server) {
        return Err(RpcError::method_not_found(request.method));
    }
    Ok((found, uri.into_owned()))
}
