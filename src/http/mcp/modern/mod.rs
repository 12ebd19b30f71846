//! The modern era (2026-07-28): every request says all about itself, and closing its response cancels it.

pub(crate) mod listen;
pub(crate) mod request_state;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use self::listen::listen;
use super::forward::{self, Forward};
use super::introduction::Introduction;
use super::lists::{self, Kind};
use super::response::{Exchange, respond_at_once};
use super::rpc::{self, RpcError};
use super::stream::sse;
use super::{Asking, PARAM_PREFIX, PROTOCOL_VERSION, meta_text};
use crate::gateway::Caller;
use crate::protocol::mcp::headers::{HeaderMismatch, repeated, same, same_decoded};
use crate::protocol::mcp::{Era, ProtocolVersion, UNSUPPORTED_PROTOCOL_VERSION, meta, method};

const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";

/// Answers a request. Dropping the future, or the response, gives it up.
pub(super) async fn answer(asking: &Asking<'_>, caller: &Caller) -> Response<Body> {
    match dispatch(asking, caller).await {
        Ok(response) => response,
        Err(error) => error.respond(Era::Modern, Some(asking.id)),
    }
}

async fn dispatch(asking: &Asking<'_>, caller: &Caller) -> Result<Response<Body>, RpcError> {
    check_envelope(asking)?;
    if let Some(method) = forward::METHODS.into_iter().find(|method| *method == asking.method) {
        check_name(asking)?;
        return forward(asking, caller, method).await;
    }
    if let Some(kind) = Kind::of(asking.method) {
        let result = lists::list(asking, caller, kind).await?;
        return Ok(rpc::respond(StatusCode::OK, rpc::result(asking.id, &result)));
    }
    match asking.method {
        method::DISCOVER => {
            let result = Introduction::of(asking.front, caller, asking.scope)
                .await?
                .discover_result()
                .to_string();
            Ok(rpc::respond(StatusCode::OK, rpc::result(asking.id, &result)))
        }
        method::LISTEN => listen(asking, caller).await,
        other => Err(RpcError::method_not_found(other)),
    }
}

/// What every request must have, and what its headers must repeat of it.
fn check_envelope(asking: &Asking<'_>) -> Result<(), RpcError> {
    check_repeated(asking.headers)?;
    let missing = |name| {
        RpcError::invalid_params(format!("`params._meta[\"{name}\"]` is missing"))
            .with_status(StatusCode::BAD_REQUEST)
    };
    let params = &asking.params;
    let version =
        meta_text(params, meta::PROTOCOL_VERSION).ok_or_else(|| missing(meta::PROTOCOL_VERSION))?;
    let capabilities = params.meta(meta::CLIENT_CAPABILITIES);
    if !capabilities.is_some_and(|capabilities| capabilities.get().starts_with('{')) {
        return Err(missing(meta::CLIENT_CAPABILITIES));
    }
    same(asking.headers.get(PROTOCOL_VERSION), &version, "MCP-Protocol-Version")?;
    if ProtocolVersion::parse(&version).is_none_or(|version| version.era() != Era::Modern) {
        let error = RpcError::new(
            UNSUPPORTED_PROTOCOL_VERSION,
            "this protocol version is not supported in `_meta`",
        );
        let supported = [ProtocolVersion::LATEST.as_str()];
        return Err(error.with_data(&json!({"supported": supported, "requested": version})));
    }
    same(asking.headers.get(METHOD), asking.method, "Mcp-Method")?;
    Ok(())
}

/// Headers that repeat the body must be there once.
fn check_repeated(headers: &HeaderMap) -> Result<(), HeaderMismatch> {
    let repeats_body = |name: &str| {
        [PROTOCOL_VERSION, METHOD, NAME].contains(&name) || name.starts_with(PARAM_PREFIX)
    };
    let is_repeated = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
    let mut names = headers.keys().filter(|name| repeats_body(name.as_str()));
    names.find(is_repeated).map_or(Ok(()), |name| Err(repeated(name.as_str())))
}

fn check_name(asking: &Asking<'_>) -> Result<(), RpcError> {
    let named = match asking.method {
        method::COMPLETE => return Ok(()),
        method::RESOURCES_READ => "uri",
        _ => "name",
    };
    let name = asking.params.text(named)?;
    Ok(same_decoded(asking.headers.get(NAME), &name, "Mcp-Name")?)
}

async fn forward(
    asking: &Asking<'_>,
    caller: &Caller,
    method: &'static str,
) -> Result<Response<Body>, RpcError> {
    let Forward { call, reshape, events } = Forward::read(asking, caller, method, None)?;
    let id = call.id;
    match events {
        None => {
            let outcome = asking.front.gateway.call(caller, call).await;
            Ok(respond_at_once(outcome, reshape, id).await)
        }
        Some(events) => {
            let (front, caller) = (asking.front.clone(), caller.clone());
            // In a task of its own: a stream is not polled as long as its client does not read, and the call's
            // deadline must hold all the same.
            let call = tokio::spawn(async move { front.gateway.call(&caller, call).await });
            let call = AbortOnDropHandle::new(call);
            let outcome = async { call.await.ok() };
            let response = Exchange::new(outcome, events, reshape).respond(id).await;
            Ok(response.unwrap_or_else(sse::ended))
        }
    }
}
