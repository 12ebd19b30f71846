//! Translates a server's messages to its client's id, progress token and era.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::modern::connect_question;
use super::modern::request_state::RequestState;
use super::rpc::{self, RpcError};
use super::tasks::TaskTranslation;
use crate::backend::connection::call_notifications::CallNotification;
use crate::common::ids::CallId;
use crate::common::offload::Offload;
use crate::gateway::{CallError, Held, Reply};
use crate::protocol::jsonrpc::INVALID_PARAMS;
use crate::protocol::jsonrpc::members::{MemberChange, Members, with_first_member};
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::results::ResultKind;
use crate::protocol::mcp::skills::expose_result;
use crate::protocol::mcp::{Era, RESOURCE_NOT_FOUND, meta, method};
use crate::toolsets::ChangedTool;

/// The members of a request that its answer depends on.
pub(super) struct Translation {
    /// The client's era.
    pub(super) era: Era,
    /// Echoed byte for byte.
    pub(super) id: Box<RawValue>,
    pub(super) call: CallId,
    pub(super) progress_token: Option<Box<RawValue>>,
    pub(super) method: &'static str,
    /// The resource to read, as the client named it.
    pub(super) uri: Option<String>,
    /// Seals the server's `requestState` for a modern client.
    pub(super) state: Option<RequestState>,
    /// The server, if URIs of resources in its result are exposed.
    pub(super) exposes: Option<String>,
    /// Set if the client takes tasks, or the request is about one.
    pub(super) tasks: Option<Box<TaskTranslation>>,
    /// Whether the client can open a page for its user.
    pub(super) asks_by_url: bool,
    /// The tool, if the caller's toolset changes it.
    pub(super) changed: Option<Arc<ChangedTool>>,
    /// Runs long computations.
    pub(super) offload: Offload,
}

/// A response in the client's terms.
pub(super) struct Translated {
    /// Applies where the response is not part of a stream.
    pub(super) status: StatusCode,
    pub(super) message: Bytes,
    /// Counts the message's bytes until the client has taken them.
    pub(super) held: Option<Held>,
}

impl Translation {
    /// Returns a notification of the server's for the client, if the client asked for it.
    pub(super) fn notification(&self, event: CallNotification) -> Option<Bytes> {
        match event {
            CallNotification::Progress(params) => {
                let token = self.progress_token.as_deref()?.get();
                let params = String::from_utf8_lossy(&params);
                // Ambiguous parameters, with a name that appears twice, are dropped.
                let params = Members::parse(&params).ok()?;
                let params =
                    params.rewrite(|_, _| MemberChange::Keep, &[(meta::PROGRESS_TOKEN, token)]);
                Some(rpc::notification(method::PROGRESS, &params))
            }
            CallNotification::Log(params) => {
                let params = String::from_utf8_lossy(&params);
                Some(rpc::notification(method::LOG_MESSAGE, &params))
            }
            CallNotification::Message(message) => Some(message),
            CallNotification::Acknowledged(_) | CallNotification::Question(_) => None,
        }
    }

    pub(super) fn response(&self, outcome: Result<Reply, CallError>) -> Translated {
        if let Some(message) = outcome.as_ref().err().and_then(|error| self.question(error)) {
            return Translated { status: StatusCode::OK, message, held: None };
        }
        let result = |reply: Reply| Ok((self.result(&reply)?, reply.held));
        let failed = |error| RpcError::of_call(error, Some(self.call));
        match outcome.map_err(failed).and_then(result) {
            Ok((message, held)) => Translated { status: StatusCode::OK, message, held: Some(held) },
            Err(error) => {
                let error = self.error(error);
                let (status, held) = (error.status(self.era), error.held());
                Translated { status, message: error.body(Some(&self.id)), held }
            }
        }
    }

    /// Asks the client to open the page at which its user connects the tenant, if it can.
    fn question(&self, error: &CallError) -> Option<Bytes> {
        let url = error.connect_url().filter(|_| self.asks_by_url)?;
        let message = error.last().to_string();
        let result = connect_question::result(self.state.as_ref()?, &message, url)?;
        Some(rpc::result(&self.id, &result))
    }

    fn result(&self, reply: &Reply) -> Result<Bytes, RpcError> {
        let result = std::str::from_utf8(&reply.result).expect("checked by the gateway");
        let result = self.of_server(result, reply)?;
        let result = &*result;
        let result = match (self.era, reply.era) {
            // From a server of either era: an unsealed state would be rejected when it comes back.
            (Era::Modern, _) if reply.kind == ResultKind::InputRequired => self.seal(result)?,
            (Era::Modern, Era::Modern) if reply.is_typed => Cow::Borrowed(result),
            (Era::Modern, _) => Cow::Owned(self.modernise(result, reply.is_typed)),
            (Era::Legacy, Era::Legacy) => Cow::Borrowed(result),
            (Era::Legacy, Era::Modern) => {
                let modern_only: &[&str] = match self.method {
                    method::RESOURCES_READ | method::SKILLS_GET => {
                        &["resultType", "ttlMs", "cacheScope"]
                    }
                    _ => &["resultType"],
                };
                Cow::Owned(drop_members(result, modern_only))
            }
        };
        Ok(rpc::result(&self.id, &result))
    }

    /// Returns a server's result with its names and the caller's changes.
    fn of_server<'r>(&self, result: &'r str, reply: &Reply) -> Result<Cow<'r, str>, RpcError> {
        let changed = self.changed.as_deref();
        match (&self.tasks, reply.kind, &self.exposes) {
            (Some(tasks), ResultKind::Task, _) => tasks.created(result, reply.run).map(Cow::Owned),
            (Some(tasks), ..) if self.method != method::TOOLS_CALL => {
                tasks.told(result, changed).map(Cow::Owned)
            }
            (_, _, Some(server)) => {
                expose_result(result, server).map(Cow::Owned).ok_or_else(|| {
                    RpcError::from(CallError::protocol("its result does not follow the protocol"))
                })
            }
            (_, ResultKind::InputRequired, _) => Ok(Cow::Borrowed(result)),
            _ => Ok(changed.map_or(Cow::Borrowed(result), |it| it.result.apply(result, None))),
        }
    }

    /// Adds the members that legacy servers do not know, and that some modern ones forget. A result
    /// is complete, and must not be cached, unless its server says otherwise.
    fn modernise(&self, result: &str, is_typed: bool) -> String {
        let mut result = match is_typed {
            true => result.to_owned(),
            false => with_first_member(result, "resultType", "\"complete\""),
        };
        // A legacy server knows nothing of caches.
        if [method::RESOURCES_READ, method::SKILLS_GET].contains(&self.method) {
            result = drop_members(&result, &["ttlMs", "cacheScope"]);
            result = with_first_member(&result, "cacheScope", "\"private\"");
            result = with_first_member(&result, "ttlMs", "0");
        }
        result
    }

    /// Seals `requestState`, so that only this tenant can send it back, with this request.
    fn seal<'r>(&self, result: &'r str) -> Result<Cow<'r, str>, RpcError> {
        let broken = |what: &str| RpcError::from(CallError::protocol(what));
        let members = Members::parse(result).map_err(|_| broken("its result is ambiguous"))?;
        let Some(state) = members.get("requestState") else { return Ok(Cow::Borrowed(result)) };
        let state = text_of(state).ok_or_else(|| broken("its `requestState` is not a string"))?;
        let sealed = self.state.as_ref().and_then(|sealer| sealer.seal(&state));
        let sealed = sealed.ok_or_else(|| broken("its `requestState` is too long"))?;
        let sealed = Value::from(sealed).to_string();
        Ok(Cow::Owned(members.rewrite(|_, _| MemberChange::Keep, &[("requestState", &sealed)])))
    }

    /// Replaces the legacy code of a missing resource for modern clients.
    fn error(&self, mut error: RpcError) -> RpcError {
        match (&self.uri, self.era, error.code) {
            (Some(uri), Era::Modern, RESOURCE_NOT_FOUND) => {
                error.code = INVALID_PARAMS;
                error.with_data(&json!({"uri": uri}))
            }
            _ => error,
        }
    }
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
