//! Brings what a server says back into its client's terms: its id, its progress token, its era.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::modern::request_state::RequestState;
use super::rpc::{self, RpcError};
use crate::backend::connection::call_notifications::CallNotification;
use crate::gateway::{CallError, Reply};
use crate::protocol::jsonrpc::INVALID_PARAMS;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::jsonrpc::rewrite::{MemberChange, with_first_member};
use crate::protocol::mcp::results::ResultKind;
use crate::protocol::mcp::{Era, RESOURCE_NOT_FOUND, meta, method};

/// What is remembered of a request until its answer.
pub(super) struct Reshape {
    /// How the client speaks.
    pub(super) era: Era,
    /// Its id, echoed as it came.
    pub(super) id: Box<RawValue>,
    /// Its token, if it wants to hear of progress.
    pub(super) progress_token: Option<Box<RawValue>>,
    pub(super) method: &'static str,
    /// The resource it asked for, in its own terms.
    pub(super) uri: Option<String>,
    /// Seals what the server wants back with the next request.
    pub(super) state: Option<RequestState>,
}

impl Reshape {
    /// A message of the server's as the client may see it.
    pub(super) fn event(&self, event: CallNotification) -> Option<Bytes> {
        match event {
            CallNotification::Progress(params) => {
                // A server may send what nobody asked for.
                let token = self.progress_token.as_deref()?.get();
                let params = replace(&params, meta::PROGRESS_TOKEN, token)?;
                Some(rpc::notification(method::PROGRESS, &params))
            }
            CallNotification::Log(params) => Some(rpc::notification(method::LOG_MESSAGE, &text(&params))),
            CallNotification::Message(message) => Some(message),
            CallNotification::Acknowledged(_) => None,
        }
    }

    /// The answer, and the status it has when it is not part of a stream.
    pub(super) fn message(&self, outcome: Result<Reply, CallError>) -> (StatusCode, Bytes) {
        match outcome.map_err(RpcError::from).and_then(|reply| self.result(&reply)) {
            Ok(message) => (StatusCode::OK, message),
            Err(error) => {
                let error = self.error(error);
                (error.status(self.era), error.body(Some(&self.id)))
            }
        }
    }

    fn result(&self, reply: &Reply) -> Result<Bytes, RpcError> {
        let result = std::str::from_utf8(&reply.result).expect("looked at by the gateway");
        let wrap = |result: &str| rpc::result(&self.id, result);
        Ok(match (self.era, reply.era) {
            // Whoever it comes from: what is not sealed could not come back.
            (Era::Modern, _) if reply.kind == ResultKind::InputRequired => {
                wrap(&self.seal(result)?)
            }
            (Era::Modern, Era::Modern) if reply.is_typed => wrap(result),
            (Era::Modern, _) => wrap(&self.modernise(result, reply.is_typed)),
            (Era::Legacy, Era::Legacy) => wrap(result),
            (Era::Legacy, Era::Modern) => {
                let modern_only: &[&str] = match self.method {
                    method::RESOURCES_READ => &["resultType", "ttlMs", "cacheScope"],
                    _ => &["resultType"],
                };
                wrap(&drop_members(result, modern_only))
            }
        })
    }

    /// A legacy server does not say that its result is complete, nor whether it may be kept: it may not. Some modern
    /// ones forget to.
    fn modernise(&self, result: &str, is_typed: bool) -> String {
        let mut result = match is_typed {
            true => result.to_owned(),
            false => with_first_member(result, "resultType", "\"complete\""),
        };
        if self.method == method::RESOURCES_READ {
            result = drop_members(&result, &["ttlMs", "cacheScope"]);
            result = with_first_member(&result, "cacheScope", "\"private\"");
            result = with_first_member(&result, "ttlMs", "0");
        }
        result
    }

    /// What the server wants back is sealed: it can come back from this tenant only, with this request.
    fn seal(&self, result: &str) -> Result<String, RpcError> {
        let broken = |what: &str| RpcError::from(CallError::protocol(what));
        let members = Members::parse(result).map_err(|_| broken("its result is ambiguous"))?;
        let Some(state) = members.get("requestState") else { return Ok(result.to_owned()) };
        let state = crate::protocol::mcp::params::text_of(state)
            .ok_or_else(|| broken("its `requestState` is not a string"))?;
        let sealed = self.state.as_ref().and_then(|sealer| sealer.seal(&state));
        let sealed = sealed.ok_or_else(|| broken("its `requestState` is too long"))?;
        let sealed = Value::from(sealed).to_string();
        Ok(members.rewrite(|_, _| MemberChange::Keep, &[("requestState", &sealed)]))
    }

    /// A resource that is not there has another code in each era.
    fn error(&self, error: RpcError) -> RpcError {
        match (&self.uri, self.era, error.code) {
            (Some(uri), Era::Modern, RESOURCE_NOT_FOUND) => {
                error.with_code(INVALID_PARAMS).with_data(&json!({"uri": uri}))
            }
            _ => error,
        }
    }
}

/// `None` if a name appears twice in it: that is not passed on.
fn replace(object: &Bytes, name: &str, value: &str) -> Option<String> {
    let object = text(object);
    let members = Members::parse(&object).ok()?;
    Some(members.rewrite(|_, _| MemberChange::Keep, &[(name, value)]))
}

fn drop_members(object: &str, names: &[&str]) -> String {
    match Members::parse(object) {
        Ok(members) => members.rewrite(
            |name, _| if names.contains(&name) { MemberChange::Drop } else { MemberChange::Keep },
            &[],
        ),
        Err(_) => object.to_owned(),
    }
}

fn text(json: &Bytes) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(json)
}
