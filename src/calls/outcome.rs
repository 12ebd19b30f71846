//! How a call ended, as it is kept and given back.

use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::refusal::Refusal;
use crate::common::ids::CallId;
use crate::gateway::{CallError, Executed, Held, Reply, hold_kept};
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST};
use crate::protocol::mcp::HEADER_MISMATCH;
use crate::protocol::mcp::results::ResultKind;
use crate::tenants::Tenant;

/// The code of a call that was cancelled.
pub const CANCELLED: &str = "cancelled";
/// The code of a call of which nobody knows how it ended.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// Whether the tool has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ran {
    Yes,
    No,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    Ok,
    ToolError,
    Error,
}

/// An outcome without the bytes of its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub status: u16,
    pub outcome: OutcomeKind,
    pub executed: Ran,
    /// The code of an error.
    pub code: Option<String>,
    pub attempts: u32,
    pub queue_us: u64,
    pub backend_us: u64,
}

/// An answer: the same for the first request and for each retry.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub head: Head,
    /// The result object, or the problem.
    pub body: Bytes,
    /// The room of an answer that has just arrived. One that was read from the store has none.
    pub held: Option<Held>,
    /// Only in the first answer to a call that did not run.
    pub retry_after: Option<Duration>,
}

/// Returns the JSON-RPC error that an MCP client gets for the problem of a kept call.
pub fn rpc_error(problem: &[u8]) -> ErrorObject {
    #[derive(Deserialize)]
    struct Problem {
        status: u16,
        code: String,
        detail: String,
        retryable: bool,
        executed: String,
        explain: Option<String>,
        backend: Option<ErrorObject>,
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(problem) else {
        let message = "the call has failed".to_owned().into();
        return ErrorObject { code: INTERNAL_ERROR, message, data: None };
    };
    if let Some(error) = problem.backend {
        return error;
    }
    let code = match problem.code.as_str() {
        _ if problem.detail.starts_with("Header mismatch") => HEADER_MISMATCH,
        "invalid_request" => INVALID_REQUEST,
        "invalid_arguments" | "server_not_found" | "tool_not_found" | "toolset_not_found" => {
            INVALID_PARAMS
        }
        _ => i64::from(problem.status),
    };
    let mut data = json!({
        "code": problem.code,
        "retryable": problem.retryable,
        "executed": problem.executed,
    });
    if let Some(explain) = problem.explain {
        data["explain"] = json!(explain);
    }
    let data = serde_json::value::to_raw_value(&data).ok();
    ErrorObject { code, message: problem.detail.into(), data }
}

/// Writes the error of a call as its caller sees it: the status and the body.
pub type RenderError = fn(&CallError, CallId) -> (u16, Bytes);

impl Ran {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

impl From<Executed> for Ran {
    fn from(executed: Executed) -> Self {
        match executed {
            Executed::No => Self::No,
            Executed::Unknown => Self::Unknown,
        }
    }
}

impl From<ResultKind> for OutcomeKind {
    fn from(kind: ResultKind) -> Self {
        match kind {
            ResultKind::ToolError => Self::ToolError,
            ResultKind::Complete | ResultKind::InputRequired | ResultKind::Task => Self::Ok,
        }
    }
}

impl OutcomeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::Error => "error",
        }
    }
}

impl Head {
    /// Returns the head of a call that ended without an answer.
    pub(super) fn without_answer(code: &str, executed: Ran) -> Self {
        Self {
            status: 0,
            outcome: OutcomeKind::Error,
            executed,
            code: Some(code.to_owned()),
            attempts: 0,
            queue_us: 0,
            backend_us: 0,
        }
    }

    /// Returns the refusal that a call without an answer is given back as.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self.code.as_deref() {
            Some(CANCELLED) => Some(Refusal::Cancelled { executed: self.executed }),
            Some(OUTCOME_UNKNOWN) => Some(Refusal::OutcomeUnknown),
            _ => None,
        }
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("heads are plain data")
    }
}

impl Outcome {
    /// Takes room for a response with the answer, which may have it since it arrived. The call has
    /// ended, so a refusal says whether the tool ran. A call that did not run needs no room: its
    /// refusal is short, and not kept.
    pub fn hold(&self, tenant: &Tenant) -> Result<Option<Held>, Refusal> {
        let executed = self.head.executed;
        if executed == Ran::No {
            return Ok(None);
        }
        let held = hold_kept(tenant, self.held.as_ref(), self.body.len());
        held.map(Some).map_err(|detail| Refusal::NoRoomForAnswer { executed, detail })
    }

    pub(super) fn of(outcome: Result<Reply, CallError>, call: CallId, render: RenderError) -> Self {
        match outcome {
            Ok(reply) => Self::of_reply(reply),
            Err(error) => Self::of_error(&error, call, render),
        }
    }

    fn of_reply(reply: Reply) -> Self {
        let head = Head {
            status: 200,
            outcome: reply.kind.into(),
            executed: Ran::Yes,
            code: None,
            attempts: reply.attempts,
            queue_us: reply.queue.as_micros() as u64,
            backend_us: reply.backend.as_micros() as u64,
        };
        Self { head, body: reply.result, held: Some(reply.held), retry_after: None }
    }

    pub(super) fn of_error(error: &CallError, call: CallId, render: RenderError) -> Self {
        let (status, body) = render(error, call);
        let head = Head {
            status,
            outcome: OutcomeKind::Error,
            executed: error.executed().into(),
            code: Some(error.code().to_owned()),
            attempts: error.attempts(),
            queue_us: 0,
            backend_us: 0,
        };
        Self { head, body, held: error.held(), retry_after: error.retry_after() }
    }
}
