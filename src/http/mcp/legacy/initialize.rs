//! `initialize`: opens a session of the legacy era.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::value::RawValue;

use super::{end_session, within};
use crate::gateway::{CallError, Caller};
use crate::http::Front;
use crate::http::mcp::forward::carried_capabilities;
use crate::http::mcp::introduction::Introduction;
use crate::http::mcp::rpc;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::Session;
use crate::http::mcp::session::sessions::CAPABILITIES_LEN_MAX;
use crate::http::mcp::{Asking, SESSION_ID};
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::{Era, ProtocolVersion};

const TOO_MANY_OPENED: &str =
    "sessions are opened too often; use those that are open, or wait a moment";

pub(crate) async fn initialize(
    asking: &Asking<'_>,
    caller: Caller,
) -> Result<Response<Body>, RpcError> {
    let params = &asking.params;
    let asked = ProtocolVersion::parse(&params.text("protocolVersion")?);
    let version = asked.filter(|version| version.era() == Era::Legacy);
    let version = version.unwrap_or(ProtocolVersion::LATEST_LEGACY);
    let capabilities = params.get("capabilities").ok_or(ParamsError::Missing("capabilities"))?;
    if !capabilities.get().starts_with('{') || capabilities.get().len() > CAPABILITIES_LEN_MAX {
        return Err(RpcError::invalid_params(format!(
            "`params.capabilities` must be an object of at most {CAPABILITIES_LEN_MAX} bytes"
        )));
    }
    let front = asking.front;
    let capabilities = RawValue::from_string(carried_capabilities(capabilities.get()))
        .expect("what was JSON is JSON");
    let sessions = &front.sessions;
    let created = sessions.create(&caller.tenant.id, asking.scope, version, &capabilities);
    let (entered, token) = created.ok_or_else(|| CallError::busy(TOO_MANY_OPENED))?;
    // Whether it fails or the client hangs up: a session that nobody knows of must not have a process.
    let opening = Opening { front, session: Some(&entered.session) };
    let caller = within(caller, &entered.session);
    let introduction = Introduction::of(front, &caller, asking.scope).await?;
    opening.done();
    let result = introduction.initialize_result(version).to_string();
    let mut response = rpc::respond(StatusCode::OK, rpc::result(asking.id, &result));
    let token = HeaderValue::from_str(&token).expect("made of letters, digits, `-` and `_`");
    response.headers_mut().insert(SESSION_ID, token);
    Ok(response)
}

/// A session whose client does not know of it yet; ended if it never gets to.
struct Opening<'a> {
    front: &'a Front,
    session: Option<&'a Arc<Session>>,
}

impl Opening<'_> {
    fn done(mut self) {
        self.session = None;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            end_session(self.front, session);
        }
    }
}
