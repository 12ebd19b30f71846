//! The record of a call's end, made only if somebody wants it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::explain::FailedCall;
use super::{Call, CallError, Caller, Executed, Gateway, Operation, Reply, ToolName};
use crate::common::ids::{CallId, TenantId};
use crate::events::call::{before_now, bounded_name};
use crate::events::explanation::Explanation;
use crate::events::{CallOutcome, CallTags, EndedCall, Event, Kinds, TracedRequest};
use crate::protocol::mcp::results::ResultKind;

/// The time that a refused call would have had, where its server is not known.
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);

/// How a call ended.
#[derive(Clone, Copy)]
pub(super) enum Ended<'a> {
    Answered(&'a Reply),
    Failed(&'a CallError),
    Cancelled,
}

/// A call that is refused before the gateway makes it: what a front end knows of it.
pub struct RefusedCall<'a> {
    pub id: CallId,
    pub caller: &'a Caller,
    pub tags: CallTags,
    /// As asked for, and so is `target`, the tool or the method.
    pub server: &'a str,
    pub target: &'a str,
    pub arrived: Instant,
    /// The latest end that the call would have had, if it is known.
    pub deadline: Option<Instant>,
    pub size: usize,
    /// The stable code of the error.
    pub code: &'static str,
    /// The error, if it is a call's.
    pub error: Option<&'a CallError>,
    pub traced: Option<Box<TracedRequest>>,
}

impl<'a> Ended<'a> {
    pub(super) fn of(outcome: &'a Result<Reply, CallError>) -> Self {
        match outcome {
            Ok(reply) => Self::Answered(reply),
            Err(error) => Self::Failed(error),
        }
    }

    pub(super) fn event(
        self,
        caller: &Caller,
        call: &Call,
        explanation: Explanation,
        dispatched: Option<Instant>,
        took: Duration,
    ) -> Event {
        let attempts = explanation.attempts.len() as u32;
        let queue = dispatched.map_or(took, |at| at.duration_since(call.arrived));
        let failed = EndedCall {
            id: call.id,
            tenant: caller.tenant.id.clone(),
            key: caller.key,
            tags: call.tags.clone(),
            server: bounded_name(call.server.id().as_str()),
            target: bounded_name(call.target()),
            arrived: before_now(took),
            took,
            outcome: CallOutcome::Cancelled,
            code: Some("cancelled"),
            executed: Executed::if_written(dispatched.is_some()).as_str(),
            is_own_limit: false,
            attempts,
            queue,
            backend: took.saturating_sub(queue),
            bytes_in: call.size as u64,
            bytes_out: 0,
            explanation,
            backend_code: None,
            traced: call.traced.clone(),
        };
        Event::CallEnded(Arc::new(match self {
            Self::Cancelled => failed,
            Self::Failed(error) => EndedCall {
                outcome: match dispatched {
                    Some(_) => CallOutcome::Failed,
                    None => CallOutcome::Refused,
                },
                code: Some(error.code()),
                executed: error.executed().as_str(),
                is_own_limit: error.is_own_limit(),
                attempts: error.attempts(),
                backend_code: match error.last() {
                    CallError::Backend { error, .. } => Some(error.code),
                    _ => None,
                },
                ..failed
            },
            Self::Answered(reply) => EndedCall {
                outcome: match reply.kind {
                    ResultKind::ToolError => CallOutcome::ToolError,
                    ResultKind::Complete | ResultKind::InputRequired | ResultKind::Task => {
                        CallOutcome::Ok
                    }
                },
                code: None,
                executed: "yes",
                attempts: reply.attempts,
                queue: reply.queue,
                backend: reply.backend,
                bytes_out: reply.result.len() as u64,
                ..failed
            },
        }))
    }
}

impl Gateway {
    /// Tells of a call that a front end has refused.
    pub fn tell_refused(&self, refused: RefusedCall<'_>) {
        let tenant = &refused.caller.tenant.id;
        let id = refused.id;
        let error = refused.error;
        let kind = Kinds::NOTABLE;
        let kind = if refused.traced.is_some() { kind | Kinds::TRACED } else { kind };
        self.events().tell(kind, || Event::CallEnded(Arc::new(refused.record())));
        if let Some(error) = error {
            self.tell_limit(tenant, Some(id), error);
        }
    }

    /// Tells that a limit of a tenant refused something, if that is the error.
    pub fn tell_limit(&self, tenant: &TenantId, call: Option<CallId>, error: &CallError) {
        if error.is_own_limit() {
            let hit = || Event::LimitHit { tenant: tenant.clone(), call, code: error.code() };
            self.events().tell(Kinds::LIMITS, hit);
        }
    }
}

impl RefusedCall<'_> {
    fn record(self) -> EndedCall {
        let took = self.arrived.elapsed();
        let explanation = self.error.map(|error| {
            let failed = FailedCall {
                caller: self.caller,
                server: self.server,
                tool: Some(self.target),
                deadline: self.deadline.unwrap_or_else(|| self.arrived + USUAL_TIMEOUT),
                backend: None,
                error,
            };
            failed.explain(Explanation::default())
        });
        EndedCall {
            id: self.id,
            tenant: self.caller.tenant.id.clone(),
            key: self.caller.key,
            tags: self.tags,
            server: bounded_name(self.server),
            target: bounded_name(self.target),
            arrived: before_now(took),
            took,
            outcome: CallOutcome::Refused,
            code: Some(self.code),
            executed: self.error.map_or(Executed::No, CallError::executed).as_str(),
            is_own_limit: self.error.is_some_and(CallError::is_own_limit),
            attempts: 0,
            queue: took,
            backend: Duration::ZERO,
            bytes_in: self.size as u64,
            bytes_out: 0,
            explanation: explanation.unwrap_or_default(),
            backend_code: None,
            traced: self.traced,
        }
    }
}

impl Call {
    /// Returns the name of the tool, as asked for, or of the method.
    pub(super) fn target(&self) -> &str {
        match &self.operation {
            Operation::Tool { name: ToolName::Own(name) | ToolName::Exposed(name), .. } => name,
            other => other.method(),
        }
    }
}
