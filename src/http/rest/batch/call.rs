//! Makes one call of a batch, as if it had come alone: authorised, counted, charged and queued.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::RunningBatch;
use super::outcome::Outcome;
use crate::calls::batch::request::{BatchCall, WhenLimited};
use crate::calls::batch::run::{Callee, Ended, NotMade};
use crate::common::ids::CallId;
use crate::gateway::{Call, CallError, Caller, Operation, Reply, ToolName, check_room};
use crate::http::error::HttpError;
use crate::http::headers::check_timeout;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::ResultKind;
use crate::registry::Server;
use crate::tenants::limits::Cost;

/// The pause before a call tries again that was refused because too many of its tenant's calls are
/// in flight: nobody knows when one of them ends.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

impl Callee for RunningBatch {
    type Outcome = Outcome;

    async fn call(&self, call: usize, arguments: Bytes) -> Ended<Outcome> {
        let id = CallId::generate();
        match self.make(id, &self.batch.calls[call], arguments).await {
            Ok(mut reply) => {
                let result = self.held.hold(std::mem::take(&mut reply.result), reply.held.clone());
                let is_failed = reply.kind == ResultKind::ToolError;
                let outcome = Outcome::answered(id, &reply, result.clone(), self.tool_errors_fail);
                Ended { outcome, is_failed, result }
            }
            Err(error) => {
                Ended { outcome: Outcome::failed(id, &error), is_failed: true, result: None }
            }
        }
    }

    fn refuse(&self, why: NotMade) -> Outcome {
        let error = match why {
            NotMade::ArgumentsTooLarge => HttpError::PayloadTooLarge { limit: self.app.max_body },
            why => HttpError::DependencyFailed(self.describe(why)),
        };
        self.app.gateway.metrics().count_unresolved("", error.status_and_code().1);
        Outcome::failed(CallId::generate(), &error)
    }
}

/// Returns the time that the call may take from when it starts.
fn timeout_of(planned: &BatchCall, server: &Server) -> Result<Duration, CallError> {
    check_timeout(server, "timeout_ms", planned.timeout)?;
    Ok(planned.timeout.unwrap_or(server.config().timeout))
}

impl RunningBatch {
    async fn make(
        &self,
        id: CallId,
        planned: &BatchCall,
        arguments: Bytes,
    ) -> Result<Reply, HttpError> {
        let arrived = Instant::now();
        let offload = self.app.gateway.offload();
        let parsed = offload.run_if_long(arguments.len(), || RawObject::parse(arguments)).await;
        let arguments = parsed.map_err(CallError::from)?;
        let mut deadline = self.deadline;
        loop {
            self.wait_while_limited(deadline).await;
            // Looked up each time: rights and servers may change while the call waits.
            let caller = self.caller().await?;
            let server = self.app.gateway.server(&caller, &planned.server)?;
            deadline = deadline.min(arrived + timeout_of(planned, &server)?);
            let call = Call {
                id,
                server,
                size: arguments.as_str().len(),
                operation: Operation::Tool {
                    name: ToolName::Own(planned.tool.clone()),
                    arguments: arguments.clone(),
                    mirrored: None,
                },
                others: String::new(),
                meta: CallMeta { others: self.trace.clone(), ..CallMeta::default() },
                fairness_key: self.fairness_key,
                listener: None,
                arrived,
                deadline,
                deadline_max: None,
                begin_mark: None,
            };
            match self.call_admitted(&caller, call).await {
                Err(error) if self.waits_for_limit(&error, deadline) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn call_admitted(&self, caller: &Caller, call: Call) -> Result<Reply, CallError> {
        let gateway = &self.app.gateway;
        match caller.tenant.admit(Cost::Call).await.map_err(CallError::from) {
            Ok(admission) => gateway.call(caller, admission, call).await,
            Err(error) => {
                gateway.metrics().count_unresolved("", error.code());
                Err(error)
            }
        }
    }

    /// Notes a refusal by the tenant's own limits. Returns whether the call can wait for them.
    fn waits_for_limit(&self, error: &CallError, deadline: Instant) -> bool {
        if self.batch.when_limited == WhenLimited::Fail || !error.is_own_limit() {
            return false;
        }
        // The batch's own results may leave no room, and are held until it has ended.
        if check_room(&self.caller.tenant).is_err() {
            return false;
        }
        let pause = match error.last() {
            CallError::RateLimited { retry_after, .. } => *retry_after,
            _ => BUSY_PAUSE,
        };
        let until = Instant::now() + pause;
        let mut limited_until = self.limited_until.lock();
        *limited_until = until.max(*limited_until);
        until < deadline
    }

    /// Waits until the tenant's own limits may admit a call again, unless that is too late for this
    /// one. Calls wait one behind the other, so that they do not all try at that time.
    async fn wait_while_limited(&self, deadline: Instant) {
        let wait = || {
            let until = *self.limited_until.lock();
            (until > Instant::now() && until < deadline).then_some(until)
        };
        if wait().is_none() {
            return;
        }
        let _turn = timeout_at(deadline, self.limit_turn.acquire()).await;
        while let Some(until) = wait() {
            sleep_until(until).await;
        }
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
