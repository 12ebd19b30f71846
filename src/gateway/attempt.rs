//! The attempts of a call. Each is made at one instance: slot, instance, frame, answer. After a
//! failed one, another may follow.
//!
//! A call that no server has received is retried while there is time. A call that a server may have
//! received is retried only if `retry = "safe"`, its tool is read-only or idempotent, and retries
//! stay within the tenant's retry budget at the backend.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use tokio::time::Instant;

use super::steps::{AttemptStep, CallSteps};
use super::{Call, CallError, Executed, Held, Reply};
use crate::backend::connection::live_calls::{AttemptInfo, Target};
use crate::backend::connection::{Answer, CallPermits, CloseReason, DeadlineExtension, NewCall};
use crate::backend::instance::tools::{TYPICAL_TIME, Tool};
use crate::backend::queue::QueueEntry;
use crate::backend::{Backend, RunState, TokenSource};
use crate::common::ids::TenantId;
use crate::common::offload::Offload;
use crate::config::Retry;
use crate::events::explanation::AttemptPeer;
use crate::events::{Event, Events, Kinds};
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::{AskedTypes, ResultHead, ResultKind};
use crate::protocol::mcp::trace::{SpanId, new_span_id};
use crate::protocol::mcp::{Era, meta};
use crate::tenants::limits::{Admission, RateStatus};

/// The most attempts of one call, the first included.
const ATTEMPTS_MAX: u32 = 5;
/// The pause before the second attempt; doubled for each further one.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Attempt<'a> {
    pub(super) events: &'a Events,
    pub(super) backend: &'a Backend,
    pub(super) tenant: &'a TenantId,
    pub(super) call: &'a Call,
    pub(super) tool: Option<&'a Arc<Tool>>,
    /// Held until the server is done with the call, even if its caller has left.
    pub(super) admission: Arc<Admission>,
    /// The tokens of its caller, if the server wants those.
    pub(super) tokens: Option<&'a Arc<TokenSource>>,
}

/// The answer to an attempt, not read yet.
pub(super) struct AttemptAnswer {
    answer: Answer,
    era: Era,
    queue: Duration,
    backend: Duration,
    run: u64,
}

impl Attempt<'_> {
    /// Waits for a slot, sends the call to the least busy instance, and waits for the answer.
    pub(super) async fn run(
        &self,
        entry: QueueEntry<'_>,
        attempts: &mut Attempts<'_>,
        steps: &mut CallSteps,
    ) -> Result<AttemptAnswer, CallError> {
        let Self { events, backend, tool, call, .. } = self;
        let (server, tenant) = (backend.id(), self.tenant);
        let estimate = tool.map_or(TYPICAL_TIME, |tool| tool.typical());
        let must_wait = |ahead| {
            steps.note_wait(ahead);
            events.tell(Kinds::STEPS, || Event::CallQueued {
                call: call.id,
                server: server.clone(),
                tenant: tenant.clone(),
                ahead,
            });
        };
        let slot = tokio::select! {
            biased;
            slot = entry.acquire_or_wait(estimate, call.deadline, must_wait) => slot?,
            // The backlog may be long: do not wait for a slot if all instances are down.
            refusal = backend.unavailable() => return Err(refusal.into()),
        };
        // Since it began to wait, the tenant may have become a suspect.
        if !backend.takes_calls_of(self.tenant) {
            return Err(CallError::BackendStopped);
        }
        let instance = match call.task() {
            None => backend.instance_permit(attempts.avoid, call.deadline).await?,
            Some(task) => backend.permit_at_run(task.run, call.deadline).await?,
        };
        // Taken after the queue: waiting for a slot does not count as the attempt's time.
        let deadline = attempts.deadline();
        let ready = instance.instance().ready.clone();
        let (number, choice) = (instance.instance().number, instance.choice);
        attempts.avoid = Some(number);
        if backend.config().pin {
            // This instance may offer another definition than the listed one.
            let own = tool.and_then(|tool| ready.tools.get(tool.name()));
            call.refuse_if_held(own.or(*tool).map(|tool| &**tool))?;
        }
        if let Some(mark) = &call.begin_mark {
            mark.begin().await?;
        }
        let measured = backend.measure(&instance, tool.map_or("", |tool| tool.name()));
        let permits = CallPermits { instance, tenant: self.admission.clone(), slot };

        let sent = Instant::now();
        let queue = sent.duration_since(call.arrived);
        backend.metrics().queue_seconds.observe(queue.as_secs_f64());
        let step = backend.timeout();
        let mut handle = ready.connection.register(NewCall {
            tenant: self.tenant.clone(),
            call: call.id,
            deadline,
            deadline_extension: call.deadline_max.map(|until| DeadlineExtension { step, until }),
            listener: call.listener.clone(),
            permits: Some(permits),
            attempt: Some(self.info(steps.attempts() + 1, sent)),
        })?;
        let span = call.traced.as_ref().map(|_| new_span_id());
        let meta = self.meta(deadline, span);
        let (frame, headers) = call.write(handle.id(), &ready, tool.map(|tool| &**tool), &meta)?;
        let (version, is_http) = (ready.dialect.version(), ready.connection.has_headers());
        steps.note_dispatch(AttemptStep {
            instance: number,
            choice,
            dispatched: sent,
            peer: AttemptPeer { version, is_http },
            span,
            failed: None,
        });
        events.tell(Kinds::STEPS, || Event::CallDispatched {
            call: call.id,
            server: server.clone(),
            tenant: tenant.clone(),
            instance: number,
            attempt: steps.attempts(),
            deadline,
        });
        handle.send_with(frame, headers, self.tokens.cloned())?;
        let answer = handle.answer().await?;
        measured.answered();
        let backend_time = sent.elapsed();
        if let Some(tool) = tool {
            tool.metrics(backend.metrics()).record_backend(backend_time);
            tool.note_time(backend_time);
        }
        let era = ready.dialect.version().era();
        let run = ready.connection.run();
        Ok(AttemptAnswer { answer, era, queue, backend: backend_time, run })
    }

    /// Describes the attempt to operators.
    fn info(&self, number: u32, dispatched: Instant) -> AttemptInfo {
        let target = match self.tool {
            Some(tool) => Target::Tool(tool.clone()),
            None => Target::Method(self.call.operation.method()),
        };
        AttemptInfo { target, tags: self.call.boxed_tags(), number, dispatched }
    }

    /// Returns the call's metadata; with `tell_deadline` also the time that is left. The server of
    /// a traced call is told of the attempt's `span` instead of the caller's.
    fn meta(&self, deadline: Instant, span: Option<SpanId>) -> Cow<'_, CallMeta> {
        let mut meta = Cow::Borrowed(&self.call.meta);
        if let (Some(traced), Some(span)) = (&self.call.traced, span) {
            meta.to_mut().trace = Some(traced.for_server(span));
        }
        if self.backend.config().tell_deadline {
            let left = deadline.duration_since(Instant::now()).as_millis();
            // The caller's own member of this name was removed before.
            meta.to_mut().others += &format!(",\"{}\":{left}", meta::TIMEOUT);
        }
        meta
    }
}

impl AttemptAnswer {
    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Reads the answer. Takes `rate_status` only on success: an error keeps it for its own
    /// headers.
    pub(super) async fn into_reply(
        self,
        offload: &Offload,
        call: &Call,
        held: Held,
        rate_status: &mut RateStatus,
        attempts: u32,
    ) -> Result<Reply, CallError> {
        let Self { answer, era, queue, backend, run } = self;
        let asked = match era {
            Era::Modern => call.meta.asked,
            Era::Legacy => AskedTypes::default(),
        };
        let (result, held, head) = read_answer(offload, answer, held, asked).await?;
        let ResultHead { kind, is_typed } = head;
        if kind == ResultKind::InputRequired && call.meta.capabilities.is_none() {
            let reason = "only MCP clients that declare `elicitation` can be asked".into();
            return Err(CallError::InputRequired { reason });
        }
        let rate_status = std::mem::take(rate_status);
        Ok(Reply { result, held, kind, is_typed, era, queue, backend, rate_status, attempts, run })
    }
}

/// Reads an answer; a long one on a thread of its own.
async fn read_answer(
    offload: &Offload,
    answer: Answer,
    held: Held,
    asked: AskedTypes,
) -> Result<(Bytes, Held, ResultHead), CallError> {
    let (Answer::Result(text) | Answer::Error(text)) = &answer;
    let len = text.len();
    offload.run_if_long(len, move || read_here(answer, held, asked)).await
}

fn read_here(
    answer: Answer,
    held: Held,
    asked: AskedTypes,
) -> Result<(Bytes, Held, ResultHead), CallError> {
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => return Err(CallError::from_server_error(&error, held)),
    };
    let text =
        std::str::from_utf8(&result).map_err(|_| CallError::protocol("the result is not UTF-8"))?;
    let head = ResultHead::read(text, asked).map_err(CallError::protocol)?;
    Ok((result, held, head))
}

/// All attempts of one call so far, at whichever backends.
#[derive(Default)]
pub(super) struct AttemptHistory {
    /// The attempts, the current one included.
    count: u32,
    /// True if a failed attempt may have run the tool.
    may_have_run: bool,
    /// True if a server has refused an attempt and said when to come back.
    was_refused: bool,
    /// True if an instance has ended during an attempt.
    has_ended_one: bool,
}

impl AttemptHistory {
    /// Adds the earlier attempts and the tenant's rates to the last error.
    pub(super) fn into_error(self, last: CallError, rate_status: RateStatus) -> CallError {
        let attempts = self.count;
        if attempts == 0 {
            return last.with_rate_status(rate_status);
        }
        let executed = if self.may_have_run { Executed::Unknown } else { last.executed() };
        CallError::Attempted { attempts, executed, rate_status, last: Box::new(last) }
    }
}

/// The attempts of one call at one backend.
pub(super) struct Attempts<'a> {
    backend: &'a Backend,
    tenant: &'a TenantId,
    deadline: Instant,
    /// True if the operator and the tool allow the call to run twice.
    is_repeatable: bool,
    history: &'a mut AttemptHistory,
    /// The instance that failed the call last.
    pub(super) avoid: Option<usize>,
}

impl<'a> Attempts<'a> {
    /// Begins the first attempt here. Fails if an attempt elsewhere may have run the tool and the
    /// call must not run twice.
    pub(super) fn new(
        backend: &'a Backend,
        tenant: &'a TenantId,
        tool: Option<&Tool>,
        deadline: Instant,
        history: &'a mut AttemptHistory,
    ) -> Result<Self, CallError> {
        backend.retries().note_call(tenant);
        let is_repeatable =
            backend.config().retry == Retry::Safe && tool.is_some_and(Tool::is_repeatable);
        if history.may_have_run && !is_repeatable {
            let reason = CloseReason::Stopped.to_string();
            return Err(CallError::BackendExited { reason, executed: Executed::Unknown });
        }
        history.count += 1;
        Ok(Self { backend, tenant, deadline, is_repeatable, history, avoid: None })
    }

    pub(super) fn count(&self) -> u32 {
        self.history.count
    }

    /// Takes back an attempt that is not made here.
    pub(super) fn withdraw(&mut self) {
        self.history.count -= 1;
    }

    /// Returns the deadline of the current attempt: earlier than the call's only if the operator
    /// says so, since nobody else knows a slow answer from none.
    pub(super) fn deadline(&self) -> Instant {
        match self.backend.config().attempt_timeout {
            Some(attempt) if self.is_repeatable && self.history.count < ATTEMPTS_MAX => {
                self.deadline.min(Instant::now() + attempt)
            }
            _ => self.deadline,
        }
    }

    /// Returns the time of the next attempt after this error, or `None` if there is none.
    pub(super) fn next(&mut self, error: &CallError) -> Option<Instant> {
        if self.history.count >= ATTEMPTS_MAX || !self.may_repeat(error) {
            return None;
        }
        // The call's own arguments may be what the server refuses.
        let is_refused = matches!(error, CallError::BackendHttp { retry_after: Some(_), .. });
        // The call itself may be what ends an instance.
        let has_ended_one =
            matches!(error, CallError::BackendExited { executed: Executed::Unknown, .. });
        let is_again =
            is_refused && self.history.was_refused || has_ended_one && self.history.has_ended_one;
        if is_again {
            return None;
        }
        let pause = PAUSE * (1 << (self.history.count - 1));
        let pause = pause.mul_f64(rand::rng().random_range(0.5..=1.0));
        let now = Instant::now();
        // The server or its supervisor knows best when to come back.
        let until = match (error, self.backend.state()) {
            (CallError::BackendHttp { retry_after: Some(after), .. }, _) => now + *after,
            // No call waits for the end of a quarantine. An attempt that failed otherwise learns of
            // the quarantine from its next attempt, at once.
            (CallError::ServerUnavailable { .. }, RunState::Quarantined { .. }) => return None,
            (_, RunState::Backoff { until, .. }) => until.max(now),
            _ => now,
        };
        let at = until + pause;
        // Last, because what is spent of the budget does not come back.
        if at >= self.deadline || !self.may_spend(error) {
            return None;
        }
        self.history.count += 1;
        self.history.was_refused |= is_refused;
        self.history.has_ended_one |= has_ended_one;
        self.history.may_have_run |= error.executed() == Executed::Unknown;
        self.backend.metrics().retries.inc();
        Some(at)
    }

    fn may_repeat(&self, error: &CallError) -> bool {
        let failed = match error {
            CallError::BackendExited { .. }
            | CallError::BackendProtocol { .. }
            // The instance was ready when the call came, and gone when it was to be written.
            | CallError::ServerUnavailable { .. } => true,
            // The instance was replaced at that moment.
            CallError::BackendStopped => !matches!(self.backend.state(), RunState::Stopped),
            // Most other statuses would be the same again.
            CallError::BackendHttp { .. } => {
                error.is_retryable() || error.executed() == Executed::Unknown
            }
            // The attempt's deadline passed, not the call's.
            CallError::DeadlineExceeded { .. } => self.is_repeatable,
            _ => false,
        };
        failed && (error.executed() == Executed::No || self.is_repeatable)
    }

    /// Takes a retry from the budget. A call that no server has received needs no budget.
    fn may_spend(&self, error: &CallError) -> bool {
        error.executed() == Executed::No || self.backend.retries().spend(self.tenant)
    }
}

#[cfg(test)]
#[path = "tests/attempt.rs"]
mod tests;
