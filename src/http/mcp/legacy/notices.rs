//! Notifications of extensions from a client to a server. Modern clients send none over HTTP.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{check_process, in_session, is_per_session, with_rate_status};
use crate::backend::RunState;
use crate::gateway::CallError;
use crate::http::mcp::HttpRequest;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::Session;
use crate::http::mcp::session::forward_to_owner::PROMPT;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::mcp::extensions::{is_of_events, notified};
use crate::registry::Server;
use crate::tenants::limits::Cost;

/// Passes a notification on to the server that the endpoint shows, if the server declares its
/// extension and runs. The notification counts as a call. Where several servers are shown there is
/// none to pass it on to, and what a server has not declared it does not get.
pub(super) async fn forward(
    http: &HttpRequest,
    session: &Arc<Session>,
    method: &str,
    params: Option<&RawValue>,
) -> Result<Response<Body>, RpcError> {
    let accepted = || Ok(StatusCode::ACCEPTED.into_response());
    let (Some(server), Some(own)) = (http.scope.server(), notified(method)) else {
        return accepted();
    };
    let caller = in_session(&http.caller, session);
    if !caller.may_use_all_of(server) {
        return accepted();
    }
    let server = http.app.gateway.server(&caller, server)?;
    if is_per_session(&server)
        && let Some(owner) = http.remote_owner(session)
    {
        return http.forward_to(owner, Instant::now() + PROMPT, None).await;
    }
    check_process(session, &server)?;
    let refused = |error| with_rate_status(error, &caller);
    let cost = if http.is_forwarded { Cost::PaidCall } else { Cost::Call };
    let admitted = caller.tenant.admit(cost).await;
    let mut admission = admitted.map_err(|it| refused(CallError::from(it)))?;
    let limits = &caller.tenant.limits;
    let admitted = limits.admit_to(&mut admission, server.id().as_str(), None).await;
    admitted.map_err(|it| refused(CallError::from(it)))?;
    if caller.must_start(&server) {
        return accepted();
    }
    let backend = http.app.gateway.backend(&caller, server.clone())?;
    if let RunState::Ready(ready) = backend.state()
        && ready.about.own_words.declared().notifies(own)
    {
        if is_of_events(own) && matches!(&*server, Server::Shared(_)) {
            return Err(RpcError::invalid_request(
                StatusCode::BAD_REQUEST,
                "events are not carried to a shared server, which would not know whose they are; \
                 its operator can give each tenant a process with `sharing = \"tenant\"`",
            ));
        }
        // An object whose members are each there once, or nothing.
        let text = params.map_or("{}", RawValue::get);
        if Members::of_caller(text).is_err() {
            let message = "`params` must be an object that has each member once";
            return Err(RpcError::invalid_request(StatusCode::BAD_REQUEST, message));
        }
        ready.connection.notify(Frame::notification(method, text));
    }
    accepted()
}
