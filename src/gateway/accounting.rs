//! Counts each call once, for metrics and for its tenant's usage, and tells of its end, however it
//! ends.

use std::sync::Arc;
use std::time::Duration;

use super::ended::Ended;
use super::explain::FailedCall;
use super::steps::CallSteps;
use super::{Call, CallError, Caller, Gateway, Operation, Reply};
use crate::backend::Backend;
use crate::backend::instance::tools::Tool;
use crate::common::usage::Counts;
use crate::events::Kinds;
use crate::protocol::mcp::results::ResultKind;

/// The accounting of one call. Dropped without [`Accounting::finish`], it counts a cancelled call.
pub(super) struct Accounting<'a> {
    gateway: &'a Gateway,
    caller: &'a Caller,
    call: &'a Call,
    pub(super) steps: CallSteps,
    backend: Option<Arc<Backend>>,
    target: Target,
    finished: bool,
}

/// The target of the call, once it is known to exist: invented names must not become labels.
enum Target {
    Unknown,
    Tool(Arc<Tool>),
    Method(&'static str),
}

/// Keeps the call in the gauge of calls in flight until dropped.
pub(super) struct InFlightGauge(prometheus::IntGauge);

impl<'a> Accounting<'a> {
    pub(super) fn new(gateway: &'a Gateway, caller: &'a Caller, call: &'a Call) -> Self {
        let (backend, target, steps) = (None, Target::Unknown, CallSteps::default());
        Self { gateway, caller, call, steps, backend, target, finished: false }
    }

    pub(super) fn at_backend(&mut self, backend: &Arc<Backend>) -> InFlightGauge {
        self.backend = Some(backend.clone());
        let gauge = backend.metrics().in_flight.clone();
        gauge.inc();
        InFlightGauge(gauge)
    }

    pub(super) fn at_tool(&mut self, tool: &Arc<Tool>) {
        self.target = Target::Tool(tool.clone());
    }

    pub(super) fn at_method(&mut self, method: &'static str) {
        self.target = Target::Method(method);
    }

    pub(super) fn finish(mut self, outcome: &Result<Reply, CallError>) {
        self.finished = true;
        let took = self.call.arrived.elapsed();
        match outcome {
            Ok(reply) => {
                self.count(reply.kind.as_str(), took);
                self.meter(Some(reply));
            }
            // A call that the tenant's own limits refused is not part of its usage.
            Err(error) if error.is_own_limit() => {
                self.count(error.code(), took);
                self.caller.tenant.meter.add_refused();
            }
            Err(error) => self.failed(error.code(), took),
        }
        let is_last = |error: &CallError| !(self.call.waits_for_limits && error.is_own_limit());
        if outcome.as_ref().err().is_none_or(is_last) {
            self.tell(Ended::of(outcome), took);
        }
    }

    fn failed(&self, outcome: &'static str, took: Duration) {
        self.count(outcome, took);
        self.meter(None);
    }

    /// Tells of the call's end.
    fn tell(&self, ended: Ended<'_>, took: Duration) {
        let is_routine = matches!(ended, Ended::Answered(_)) && !self.is_slow(took);
        let kind = if is_routine { Kinds::ROUTINE } else { Kinds::NOTABLE };
        let kind = if self.call.traced.is_some() { kind | Kinds::TRACED } else { kind };
        self.gateway.events().tell(kind, || {
            let steps = self.steps.explain(self.call.arrived);
            let explanation = match ended {
                Ended::Failed(error) => self.failed_call(error).explain(steps),
                Ended::Answered(_) | Ended::Cancelled => steps,
            };
            let dispatched = self.steps.attempt.map(|attempt| attempt.dispatched);
            ended.event(self.caller, self.call, explanation, dispatched, took)
        });
        if let Ended::Failed(error) = ended {
            self.gateway.tell_limit(&self.caller.tenant.id, Some(self.call.id), error);
        }
    }

    fn failed_call<'e>(&'e self, error: &'e CallError) -> FailedCall<'e> {
        let tool = match (&self.target, &self.call.operation) {
            (Target::Tool(tool), _) => Some(tool.name()),
            (_, Operation::Tool { .. }) => Some(self.call.target()),
            (_, Operation::Method(_) | Operation::Extension(_)) => None,
        };
        FailedCall {
            caller: self.caller,
            server: self.call.server.id().as_str(),
            tool,
            deadline: self.call.deadline,
            backend: self.backend.as_deref(),
            error,
        }
    }

    /// Returns whether a call has used half of its time.
    fn is_slow(&self, took: Duration) -> bool {
        took * 2 >= self.call.deadline.duration_since(self.call.arrived)
    }

    /// Counts the outcome in the metrics.
    fn count(&self, outcome: &'static str, took: Duration) {
        match (&self.backend, &self.target) {
            (Some(backend), Target::Tool(tool)) => {
                tool.metrics(backend.metrics()).record(outcome, took);
            }
            (backend, _) => {
                let server = backend.as_ref().map_or("", |backend| backend.id().as_str());
                self.gateway.metrics.count_unresolved(server, outcome);
            }
        }
    }

    /// Adds the call to the tenant's usage.
    fn meter(&self, reply: Option<&Reply>) {
        let target = match &self.target {
            Target::Tool(tool) => tool.name(),
            Target::Method(method) => method,
            Target::Unknown => return,
        };
        let Some(backend) = &self.backend else { return };
        self.caller.tenant.meter.add(backend.id(), target, self.counts(reply));
    }

    fn counts(&self, reply: Option<&Reply>) -> Counts {
        let once = Counts { calls: 1, bytes_in: self.call.size as u64, ..Counts::default() };
        let Some(reply) = reply else { return Counts { errors: 1, ..once } };
        Counts {
            tool_errors: u64::from(reply.kind == ResultKind::ToolError),
            queue_us: reply.queue.as_micros() as u64,
            backend_us: reply.backend.as_micros() as u64,
            bytes_out: reply.result.len() as u64,
            ..once
        }
    }
}

impl Drop for Accounting<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let took = self.call.arrived.elapsed();
            self.failed("cancelled", took);
            self.tell(Ended::Cancelled, took);
        }
    }
}

impl Drop for InFlightGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}
