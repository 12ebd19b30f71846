//! Makes one call of a batch, as if it had come alone: authorised, counted, charged and queued.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::accepted::Stop;
use super::outcome::ItemOutcome;
use super::request::{BatchCall, WhenLimited};
use super::run::{Callee, Ended, NotMade};
use super::{ItemError, Problem, Rights, RunningBatch};
use crate::calls::Refusal;
use crate::common::ids::CallId;
use crate::events::TracedRequest;
use crate::gateway::{
    Call, CallError, Caller, Operation, RefusedCall, Reply, ToolName, check_room, check_timeout,
};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::method;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::ResultKind;
use crate::registry::Server;
use crate::tenants::limits::Cost;

impl<R: Rights> Callee for RunningBatch<R> {
    type Outcome = ItemOutcome;

    async fn call(&self, call: usize, arguments: Result<Bytes, NotMade>) -> Ended<ItemOutcome> {
        let id = CallId::generate();
        let planned = &self.batch.calls[call];
        if let Some(key) = &self.options.key {
            let key = key.of_item(&planned.id);
            return match self.make_kept(id, key, planned, arguments).await {
                Ok((caller, answer)) => self.ended_kept(&caller, &answer),
                Err(error) => {
                    self.tell_refused(id, planned, &error).await;
                    self.failed(id, error)
                }
            };
        }
        let mut is_told = false;
        let made = match arguments {
            Ok(arguments) => self.make(id, planned, arguments, &mut is_told).await,
            Err(why) => Err(self.not_made(why)),
        };
        match made {
            Ok(reply) => self.ended(id, reply),
            Err(error) => {
                if !is_told {
                    self.tell_refused(id, planned, &error).await;
                }
                self.failed(id, error)
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::is_asked)
    }
}

/// Returns the time that the call may take from when it starts.
pub(super) fn timeout_of(planned: &BatchCall, server: &Server) -> Result<Duration, CallError> {
    check_timeout(server, "timeout_ms", planned.timeout)?;
    Ok(planned.timeout.unwrap_or(server.config().timeout))
}

impl<R: Rights> RunningBatch<R> {
    /// Makes a call. Notes in `is_told` whether the gateway has told of its end.
    async fn make(
        &self,
        id: CallId,
        planned: &BatchCall,
        arguments: Bytes,
        is_told: &mut bool,
    ) -> Result<Reply, ItemError> {
        let arrived = Instant::now();
        let arguments = self.parse(arguments).await?;
        let gateway = &self.calls.0.gateway;
        let (mut deadline, mut is_paid) = (self.deadline, false);
        loop {
            self.limit_wait.wait(deadline).await;
            // Looked up each time: rights and servers may change while the call waits.
            let caller = self.rights.caller().await.map_err(ItemError::NoRights)?;
            let server = gateway.server(&caller, &planned.server)?;
            deadline = deadline.min(arrived + timeout_of(planned, &server)?);
            let details = &self.options.details;
            let call = Call {
                id,
                server,
                size: arguments.byte_len(),
                operation: Operation::Tool {
                    name: ToolName::Own(planned.tool.clone()),
                    arguments: arguments.clone(),
                    mirrored: None,
                },
                others: String::new(),
                meta: CallMeta { trace: details.trace.clone(), ..CallMeta::default() },
                fairness_key: details.fairness_key,
                tags: details.tags(),
                waits_for_limits: self.batch.when_limited == WhenLimited::Wait,
                listener: None,
                arrived,
                deadline,
                deadline_max: None,
                traced: self.sample(),
                held: None,
                is_kept: false,
                begin_mark: None,
            };
            match self.call_admitted(&caller, &mut is_paid, call, is_told).await {
                Err(error) if self.waits_for_limit(&caller, &error, deadline) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    pub(super) async fn parse(&self, arguments: Bytes) -> Result<RawObject, CallError> {
        let offload = self.calls.0.gateway.offload();
        let parsed = offload.run_if_long(arguments.len(), || RawObject::parse(arguments)).await;
        Ok(parsed?)
    }

    /// Makes the call if the tenant's limits admit it. Each call is charged once.
    async fn call_admitted(
        &self,
        caller: &Caller,
        is_paid: &mut bool,
        call: Call,
        is_told: &mut bool,
    ) -> Result<Reply, CallError> {
        let gateway = &self.calls.0.gateway;
        *is_paid = *is_paid || self.take_payment();
        let cost = if *is_paid { Cost::PaidCall } else { Cost::Call };
        match caller.tenant.admit(cost).await.map_err(CallError::from) {
            Ok(admission) => {
                *is_paid = true;
                let waits = call.waits_for_limits;
                let outcome = gateway.call(caller, admission, &call).await;
                let is_own_limit = |error: &CallError| error.is_own_limit();
                *is_told = !(waits && outcome.as_ref().is_err_and(is_own_limit));
                outcome
            }
            Err(error) => {
                gateway.metrics().count_unresolved("", error.code());
                *is_told = false;
                Err(error)
            }
        }
    }

    /// Returns whether the batch was charged for this call before.
    pub(super) fn take_payment(&self) -> bool {
        self.is_paid.load(Ordering::Relaxed) && self.is_paid.swap(false, Ordering::Relaxed)
    }

    /// Notes a refusal by the tenant's own limits. Returns whether the call can wait for them.
    pub(super) fn waits_for_limit(
        &self,
        caller: &Caller,
        error: &CallError,
        deadline: Instant,
    ) -> bool {
        let retry_after = match error.last() {
            CallError::RateLimited { retry_after, .. } => Some(*retry_after),
            _ => None,
        };
        error.is_own_limit() && self.can_wait(caller, retry_after, deadline)
    }

    /// Notes that the tenant's own limits refuse a call. Returns whether it can wait for them.
    pub(super) fn can_wait(
        &self,
        caller: &Caller,
        retry_after: Option<Duration>,
        deadline: Instant,
    ) -> bool {
        // The batch's own results may leave no room, and are held until it has ended.
        self.batch.when_limited == WhenLimited::Wait
            && (self.results.is_some() || check_room(&caller.tenant).is_ok())
            && self.limit_wait.refused(retry_after, deadline)
    }

    fn ended(&self, id: CallId, mut reply: Reply) -> Ended<ItemOutcome> {
        let (body, unsent) = (std::mem::take(&mut reply.result), reply.held.clone());
        let result = self.held.hold(body, unsent);
        let outcome = match &result {
            Some(held) => {
                let tool_errors_fail = self.options.tool_errors_fail;
                ItemOutcome::answered(id, &reply, held.clone(), tool_errors_fail)
            }
            None => {
                ItemOutcome::too_large(id, &reply, self.render(ItemError::ResultTooLarge, None))
            }
        };
        Ended { outcome, is_failed: reply.kind == ResultKind::ToolError, result }
    }

    pub(super) fn failed(&self, id: CallId, error: ItemError) -> Ended<ItemOutcome> {
        let (attempts, held) = match &error {
            ItemError::Call(error) => (error.attempts(), error.held()),
            _ => (0, None),
        };
        // The record says so, to every retry.
        let is_replay =
            matches!(error, ItemError::Kept(Refusal::OutcomeUnknown | Refusal::ResultGone));
        let problem = self.render(error, Some(id));
        let mut outcome = ItemOutcome::failed(id, problem, held);
        (outcome.is_replay, outcome.attempts) = (is_replay, attempts);
        Ended { outcome, is_failed: true, result: None }
    }

    pub(super) fn render(&self, error: ItemError, call: Option<CallId>) -> Problem {
        (self.calls.0.render_item)(error, call)
    }

    /// Returns the span of a call of the batch, if it is to be traced.
    fn sample(&self) -> Option<Box<TracedRequest>> {
        let sampler = self.calls.0.gateway.sampler();
        sampler.sample(self.options.details.trace.as_ref(), method::TOOLS_CALL)
    }

    /// Tells of a call that was refused before it was one.
    async fn tell_refused(&self, id: CallId, planned: &BatchCall, error: &ItemError) {
        // Without rights there is no tenant to tell about.
        let Ok(caller) = self.rights.caller().await else { return };
        let (code, error) = match error {
            ItemError::Call(error) => (error.code(), Some(error)),
            ItemError::Kept(refusal) => (refusal.code(), None),
            ItemError::DependencyFailed(_) => ("dependency_failed", None),
            ItemError::ArgumentsTooLarge { .. } => ("payload_too_large", None),
            ItemError::ResultTooLarge | ItemError::NoRights(_) => return,
        };
        self.calls.0.gateway.tell_refused(RefusedCall {
            id,
            caller: &caller,
            tags: self.options.details.tags(),
            server: &planned.server,
            target: &planned.tool,
            arrived: Instant::now(),
            deadline: Some(self.deadline),
            size: planned.text.len(),
            code,
            error,
            traced: self.sample(),
        });
    }

    /// Returns the error of a call that is not made, and counts it.
    pub(super) fn not_made(&self, why: NotMade) -> ItemError {
        let error = match why {
            NotMade::ArgumentsTooLarge => {
                ItemError::ArgumentsTooLarge { limit: self.calls.0.max_body }
            }
            why => ItemError::DependencyFailed(self.describe(why)),
        };
        let code = match &error {
            ItemError::ArgumentsTooLarge { .. } => "payload_too_large",
            _ => "dependency_failed",
        };
        self.calls.0.gateway.metrics().count_unresolved("", code);
        error
    }

    fn describe(&self, why: NotMade) -> String {
        let id = |call: usize| &self.batch.calls[call].id;
        match why {
            NotMade::DependencyFailed { dependency } => {
                format!("the call `{}`, which this one depends on, has failed", id(dependency))
            }
            NotMade::ResultMissing { dependency } => format!(
                "the result of the call `{}` has no part that `pointer` leads to, or was too \
                 large to be held",
                id(dependency)
            ),
            NotMade::Stopped { failed } => {
                format!("`on_error` is `stop`, and the call `{}` has failed", id(failed))
            }
            NotMade::TooMuchRead => {
                "the references of this call search through too many bytes of results".to_owned()
            }
            NotMade::ArgumentsTooLarge => unreachable!("answered with another code"),
        }
    }
}
