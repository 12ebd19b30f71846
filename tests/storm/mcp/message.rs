//! Reads the messages of a response: each must be this call's own.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use trunkline::protocol::jsonrpc::envelope::ErrorObject;
use trunkline::protocol::mcp::method;
use trunkline::protocol::mcp::results::{AskedTypes, ResultHead, ResultKind};

use super::request::Call;
use crate::outcome::Outcome;
use crate::plan::tenant_in;
use crate::report::Tally;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorObject>,
}

/// The `params` of progress, or of a log line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meanwhile<'a> {
    #[serde(borrow)]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
}

/// The `data` of the gateway's own errors.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnError<'a> {
    #[serde(borrow)]
    code: Cow<'a, str>,
    retry_after_ms: Option<u64>,
}

/// Looks at all messages of one exchange.
pub struct Inspection<'a> {
    pub call: &'a Call,
    pub tally: &'a Tally,
    /// The answer, once it is there.
    pub outcome: Option<Outcome>,
}

impl Inspection<'_> {
    /// Takes the next message.
    pub fn take(&mut self, json: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Message<'_>>(json) else {
            let text = String::from_utf8_lossy(json);
            return self.mismatch(&format!("what is no message: {text:.200}"));
        };
        if self.outcome.is_some() {
            let text = String::from_utf8_lossy(json);
            return self.mismatch(&format!("something after its answer: {text:.200}"));
        }
        match (message.method.as_deref(), message.id) {
            (Some(method), None) => self.meanwhile(method, message.params),
            (None, Some(id)) if id.get() == self.call.id => {
                self.outcome = Some(read(message.result, message.error));
            }
            (_, id) => {
                let id = id.map_or("none", RawValue::get);
                self.mismatch(&format!(
                    "a message with the id {id}, and its own is {}",
                    self.call.id
                ));
            }
        }
    }

    /// A message before the answer.
    fn meanwhile(&mut self, method: &str, params: Option<&RawValue>) {
        let params =
            params.and_then(|params| serde_json::from_str::<Meanwhile<'_>>(params.get()).ok());
        let Some(params) = params else {
            return self.mismatch(&format!("{method} that cannot be read"));
        };
        let mark = match method {
            method::PROGRESS => {
                self.tally.progress_events.add(1);
                let token = params.progress_token.map(RawValue::get);
                if token.is_none() || token != self.call.token.as_deref() {
                    let own = &self.call.token;
                    self.mismatch(&format!("progress for {token:?}, and its own token is {own:?}"));
                }
                params.message
            }
            method::LOG_MESSAGE => {
                self.tally.log_lines.add(1);
                // A tenant may hear of its earlier calls.
                let named = params.data.as_deref().and_then(tenant_in);
                if named != tenant_in(self.call.mark()) {
                    self.mismatch(&format!("a log line of {:?}", params.data));
                }
                return;
            }
            other => return self.mismatch(&format!("{other}, which is for nobody")),
        };
        if mark.as_deref() != Some(self.call.mark()) {
            self.mismatch(&format!("{method} of {mark:?}"));
        }
    }

    fn mismatch(&self, got: &str) {
        self.tally.mismatch(self.call.mark(), got);
    }
}

fn read(result: Option<&RawValue>, error: Option<ErrorObject>) -> Outcome {
    match (result, error) {
        (Some(result), None) => match ResultHead::read(result.get(), AskedTypes::default()) {
            Ok(head) if head.kind == ResultKind::InputRequired => Outcome::Protocol,
            Ok(head) => Outcome::Result {
                result: Bytes::copy_from_slice(result.get().as_bytes()),
                is_error: head.kind == ResultKind::ToolError,
            },
            Err(error) => Outcome::Wrong(format!("got a result that is none: {error}")),
        },
        (None, Some(error)) => read_error(error),
        _ => Outcome::Wrong("got neither a result nor an error".to_owned()),
    }
}

fn read_error(error: ErrorObject) -> Outcome {
    let ErrorObject { message, data, .. } = error;
    let message = String::from(message);
    let data = data.map(|data| data.get().to_owned()).unwrap_or_default();
    // What a server says has no such code.
    let Ok(own) = serde_json::from_str::<OwnError<'_>>(&data) else {
        return Outcome::ServerError { message, data };
    };
    match &*own.code {
        "server_unavailable" => {
            let retry_after = Duration::from_millis(own.retry_after_ms.unwrap_or_default());
            Outcome::Unavailable { retry_after, reason: message }
        }
        "deadline_exceeded" => Outcome::Expired,
        "backend_exited" => Outcome::Ended,
        "backend_too_large" => Outcome::TooLarge,
        "backend_protocol" | "input_required" => Outcome::Protocol,
        "overloaded" => Outcome::Refused,
        other => Outcome::Wrong(format!("failed with {other}: {message}")),
    }
}

/// Reads the answer to `initialize`: `None` if the session is open.
pub fn refusal(json: &[u8]) -> Option<Outcome> {
    match serde_json::from_slice::<Message<'_>>(json) {
        Ok(Message { result: Some(_), .. }) => None,
        Ok(Message { error: Some(error), .. }) => Some(read_error(error)),
        _ => Some(Outcome::Wrong("got no session".to_owned())),
    }
}
