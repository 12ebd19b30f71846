//! `initialize` of the legacy era: opens a session.

use axum::body::Body;
use axum::http::Response;
use serde_json::value::RawValue;

use super::{end_session, in_session};
use crate::common::limit_use::LimitUse;
use crate::gateway::CallError;
use crate::http::AppState;
use crate::http::headers::{SESSION_ID, text_value};
use crate::http::mcp::McpRequest;
use crate::http::mcp::capabilities::supported_capabilities;
use crate::http::mcp::endpoint_info::EndpointInfo;
use crate::http::mcp::rpc::{self, RpcError};
use crate::http::mcp::session::Session;
use crate::http::mcp::session::sessions::{CAPABILITIES_LEN_MAX, OPENED_AT_ONCE_MAX};
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::{Era, ProtocolVersion};

const TOO_MANY_OPENED: &str =
    "sessions are opened too often; use those that are open, or wait a moment";

/// Opens a session.
pub(super) async fn initialize(request: McpRequest<'_>) -> Result<Response<Body>, RpcError> {
    let McpRequest { http, id, ref params, .. } = request;
    let version = ProtocolVersion::parse(&params.text("protocolVersion")?);
    let version = version.filter(|version| version.era() == Era::Legacy);
    let version = version.unwrap_or(ProtocolVersion::LATEST_LEGACY);
    let capabilities = params.get("capabilities").ok_or(ParamsError::Missing("capabilities"))?;
    if !capabilities.get().starts_with('{') || capabilities.get().len() > CAPABILITIES_LEN_MAX {
        return Err(RpcError::invalid_params(format!(
            "`params.capabilities` must be an object of at most {CAPABILITIES_LEN_MAX} bytes"
        )));
    }
    let (capabilities, _) = supported_capabilities(capabilities.get(), &http.scope, Era::Legacy);
    let capabilities =
        RawValue::from_string(capabilities).expect("JSON without some members is JSON");
    let tenant = &http.caller.tenant;
    let created = http.app.sessions.create(tenant, &http.scope, version, &capabilities);
    let (session, token) = created.ok_or_else(|| {
        CallError::busy(LimitUse::reached("session_starts", OPENED_AT_ONCE_MAX), TOO_MANY_OPENED)
    })?;
    let session = &session.session;
    let opening = OpeningSession { app: &http.app, session, is_known: false };
    let caller = in_session(&http.caller, session);
    let info = EndpointInfo::of(&McpRequest { caller: &caller, ..request }).await?;
    opening.done();
    let mut response = rpc::respond_result(id, &info.initialize_result(version));
    response.headers_mut().insert(&SESSION_ID, text_value(token));
    Ok(response)
}

/// Ends a session that its client never learns of, because opening it fails or the client
/// disconnects. Nobody else would end the session's processes.
struct OpeningSession<'a> {
    app: &'a AppState,
    session: &'a Session,
    is_known: bool,
}

impl OpeningSession<'_> {
    fn done(mut self) {
        self.is_known = true;
    }
}

impl Drop for OpeningSession<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            end_session(self.app, self.session);
        }
    }
}
