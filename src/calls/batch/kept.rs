//! Calls of a batch with an `Idempotency-Key`. Each has a record and a key of its own, so a batch
//! that is sent again runs what has not run yet, and is answered with the outcomes of the rest.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::item::timeout_of;
use super::outcome::ItemOutcome;
use super::request::BatchCall;
use super::run::{Ended, NotMade};
use super::{ItemError, Rights, RunningBatch};
use crate::calls::{
    Answer, CallRequest, Details, Fingerprint, IdempotencyKey, Mode, OutcomeKind, Ran, Refusal,
    Scope, Ticket,
};
use crate::common::ids::{CallId, ServerId};
use crate::gateway::{CallError, Caller, Executed, hold_response};
use crate::tenants::limits::Cost;

impl<R: Rights> RunningBatch<R> {
    /// Makes a call, unless its key has one already. A call that is not to be made may have been
    /// made before: then its outcome counts.
    pub(super) async fn make_kept(
        &self,
        id: CallId,
        key: IdempotencyKey,
        planned: &BatchCall,
        arguments: Result<Bytes, NotMade>,
    ) -> Result<(Caller, Answer), ItemError> {
        let arrived = Instant::now();
        let fingerprint = Fingerprint::of(&planned.text);
        let arguments = match arguments {
            Ok(arguments) => self.parse(arguments).await?,
            Err(why) => {
                let not_made = || self.not_made(why);
                return self.made_before(&key, fingerprint, planned, not_made).await;
            }
        };
        let mut deadline = self.deadline;
        let mut is_paid = false;
        loop {
            // The time of a batch that was taken over may be over before this call's turn.
            if Instant::now() >= self.deadline {
                let too_late = || CallError::DeadlineExceeded { executed: Executed::No }.into();
                return self.made_before(&key, fingerprint, planned, too_late).await;
            }
            let caller = self.caller_within_limits(deadline, &mut is_paid).await?;
            let server = self.calls.0.gateway.server(&caller, &planned.server)?;
            if planned.tool.is_empty() || planned.tool.contains('\0') {
                // The store could not keep it, and no tool is called so.
                let (server, tool) = (server.id().to_string(), planned.tool.clone());
                return Err(CallError::ToolNotFound { server, tool }.into());
            }
            let timeout = timeout_of(planned, &server)?;
            deadline = deadline.min(arrived + timeout);
            let timeout_ms = timeout.max(server.config().timeout).as_millis() as u64;
            let request = CallRequest {
                id,
                server,
                tool: planned.tool.clone(),
                arguments: arguments.clone(),
                held: None,
                key: Some(key.clone()),
                fingerprint: fingerprint.clone(),
                listener: None,
                mcp: None,
                details: Details { timeout_ms, ..self.options.details.clone() },
            };
            let ticket = self.calls.submit(&caller, request, Mode::Now)?;
            let answer = self.outcome(ticket, deadline).await?;
            let outcome = &answer.outcome;
            let is_limited = outcome.head.executed == Ran::No
                && matches!(outcome.head.code.as_deref(), Some("tenant_busy" | "rate_limited"));
            if !(is_limited && self.can_wait(&caller, outcome.retry_after, deadline)) {
                return Ok((caller, answer));
            }
        }
    }

    /// Waits for the outcome of a call, and cancels it with the batch.
    async fn outcome(&self, mut ticket: Ticket, deadline: Instant) -> Result<Answer, Refusal> {
        let mut until = deadline;
        if let Some(wait) = self.options.wait {
            ticket.decided(deadline).await?;
            if ticket.is_retry() {
                until = deadline.min(Instant::now() + wait);
            }
        }
        tokio::select! {
            answer = ticket.outcome(until) => answer.map_err(|refusal| match refusal {
                Refusal::StillRunning(id) if until < deadline => Refusal::InProgress(id),
                refusal => refusal,
            }),
            () = self.cancelled() => {
                ticket.cancel();
                Err(Refusal::Cancelled { executed: Ran::Unknown })
            }
        }
    }

    async fn stopped(&self) {
        match &self.stop {
            Some(stop) => stop.asked().await,
            None => pending().await,
        }
    }

    async fn cancelled(&self) {
        match &self.stop {
            Some(stop) => stop.cancelled().await,
            None => pending().await,
        }
    }

    /// Returns the outcome that a call which is not made now has had before.
    async fn made_before(
        &self,
        key: &IdempotencyKey,
        fingerprint: Fingerprint,
        planned: &BatchCall,
        not_made: impl FnOnce() -> ItemError,
    ) -> Result<(Caller, Answer), ItemError> {
        let Ok(server) = ServerId::parse(&planned.server) else { return Err(not_made()) };
        let caller = self.caller_within_limits(self.deadline, &mut false).await?;
        let scope = Scope::new(&caller.tenant.id, &server, &planned.tool, key);
        let known = self.calls.made_before(&caller.tenant, scope, fingerprint, self.deadline);
        match known.await? {
            Some(answer) => Ok((caller, answer)),
            None => Err(not_made()),
        }
    }

    /// Returns the caller with the rights that it has now, once its rate has paid for the call.
    async fn caller_within_limits(
        &self,
        deadline: Instant,
        is_paid: &mut bool,
    ) -> Result<Caller, ItemError> {
        loop {
            tokio::select! {
                () = self.limit_wait.wait(deadline) => {}
                () = self.stopped() => return Err(CallError::ShuttingDown.into()),
            }
            let caller = self.rights.caller().await.map_err(ItemError::NoRights)?;
            *is_paid = *is_paid || self.take_payment();
            if *is_paid {
                return Ok(caller);
            }
            let refused = match caller.tenant.admit(Cost::KeptCall).await {
                Ok(_) => {
                    *is_paid = true;
                    return Ok(caller);
                }
                Err(refusal) => CallError::from(refusal),
            };
            if !self.waits_for_limit(&caller, &refused, deadline) {
                self.calls.0.gateway.metrics().count_unresolved("", refused.code());
                return Err(refused.into());
            }
        }
    }

    /// Holds the result for the answer and for references, if there is room. Without, its record
    /// still has it.
    pub(super) fn ended_kept(&self, caller: &Caller, answer: &Answer) -> Ended<ItemOutcome> {
        let kind = answer.outcome.head.outcome;
        let is_failed = kind != OutcomeKind::Ok;
        let body = answer.outcome.body.clone();
        if kind == OutcomeKind::Error {
            return Ended { outcome: ItemOutcome::kept_error(answer), is_failed, result: None };
        }
        let room = match &self.results {
            Some(results) => results.take(body.len()).ok().map(Arc::new),
            None => hold_response(&caller.tenant, body.len()).ok(),
        };
        let result = room.and_then(|room| self.held.hold(body, room));
        let outcome = match &result {
            Some(held) => ItemOutcome::kept(answer, held.clone(), self.options.tool_errors_fail),
            None => {
                ItemOutcome::kept_too_large(answer, self.render(ItemError::ResultTooLarge, None))
            }
        };
        Ended { outcome, is_failed, result }
    }
}
