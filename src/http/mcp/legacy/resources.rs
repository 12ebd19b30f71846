//! `resources/subscribe` and `resources/unsubscribe` of the legacy era. Modern clients listen ([`crate::http::mcp::modern::listen`]).

use std::sync::Arc;

use tokio::time::Instant;

use super::{EMPTY, gone};
use crate::backend::changes::mailbox::Lists;
use crate::gateway::{CallError, Caller};
use crate::http::mcp::modern::listen::{WATCHED_MAX, not_watched};
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::Session;
use crate::http::mcp::{Asking, Scope};
use crate::http::rest::call::asked_timeout;
use crate::protocol::mcp::names;
use crate::registry::BackendRef;

pub(crate) async fn subscribe(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let limits = &caller.tenant.limits;
    // Like a call: the server has as much to do with it.
    let mut admission = limits.enter().await.map_err(CallError::from)?;
    let (backend, uri) = resource(asking, caller, session)?;
    let deadline = asking.arrived + asked_timeout(asking.headers)?.unwrap_or(backend.timeout());
    let server = backend.id().as_str();
    let (backend, _) = asking.front.gateway.ready(caller, server, |_| deadline).await?;
    let admitted = limits.admit(&mut admission, backend.id().as_str(), None).await;
    let standing = admitted.map_err(CallError::from)?;
    let watched = watch(asking, session, &backend, &uri, deadline).await;
    watched.map_err(|error| error.with_standing(standing))
}

async fn watch(
    asking: &Asking<'_>,
    session: &Arc<Session>,
    backend: &BackendRef,
    uri: &str,
    deadline: Instant,
) -> Result<String, RpcError> {
    let subscription = session.listen_to(backend.changes(), Lists::ALL, &asking.front.seats)?;
    if subscription.watched_len() >= WATCHED_MAX {
        return Err(RpcError::invalid_params(format!(
            "a session can watch at most {WATCHED_MAX} resources of a server"
        )));
    }
    match subscription.watch(uri, deadline).await {
        Ok(()) => Ok(EMPTY.to_owned()),
        Err(error) => Err(not_watched(&error)),
    }
}

pub(crate) fn unsubscribe(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let (backend, uri) = resource(asking, caller, session)?;
    session.listen_to(backend.changes(), Lists::ALL, &asking.front.seats)?.unwatch(&uri);
    Ok(EMPTY.to_owned())
}

/// The resource that a request is about, and the server that has it.
fn resource(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<(BackendRef, String), RpcError> {
    if !session.is_ours() {
        return Err(gone());
    }
    let uri = asking.params.text("uri")?;
    let (server, uri) = match asking.scope {
        Scope::One(server) => (server.as_str(), &*uri),
        Scope::All => names::split_resource_uri(&uri).ok_or_else(|| {
            RpcError::invalid_params("`params.uri` must be one that `resources/list` gives")
        })?,
    };
    let backend = asking.front.gateway.backend(caller, server)?;
    if !caller.tenant.may_use_all_of(server) {
        return Err(RpcError::method_not_found(asking.method));
    }
    Ok((backend, uri.to_owned()))
}
