//! One attempt of a call at one instance: slot, instance, frame, answer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::retry::Attempts;
use super::{Call, CallError, Reply};
use crate::backend::Backend;
use crate::backend::connection::{Answer, CallPermits, DeadlineExtension, NewCall};
use crate::backend::instance::tools::{TYPICAL_TIME, Tool};
use crate::backend::queue::QueueEntry;
use crate::common::ids::TenantId;
use crate::common::offload::Offload;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::{ResultHead, ResultKind};
use crate::protocol::mcp::{Era, meta};
use crate::tenants::limits::{Admission, RateStatus};

pub(super) struct Attempt<'a> {
    pub(super) backend: &'a Backend,
    pub(super) tenant: &'a TenantId,
    pub(super) call: &'a Call,
    pub(super) tool: Option<&'a Tool>,
    /// Held until the server is done with the call, even if its caller has left.
    pub(super) admission: Arc<Admission>,
}

/// The answer to an attempt, not read yet.
pub(super) struct AttemptAnswer {
    answer: Answer,
    era: Era,
    queue: Duration,
    backend: Duration,
}

impl Attempt<'_> {
    /// Waits for a slot, sends the call to the least busy instance, and waits for the answer.
    pub(super) async fn run(
        &self,
        entry: QueueEntry<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Result<AttemptAnswer, CallError> {
        let Self { backend, tool, call, .. } = self;
        let estimate = tool.map_or(TYPICAL_TIME, Tool::typical);
        let slot = tokio::select! {
            biased;
            slot = entry.acquire(estimate, call.deadline) => slot?,
            // The backlog may be long: do not wait for a slot if all instances are down.
            refusal = backend.unavailable() => return Err(refusal.into()),
        };
        let instance = backend.instance_permit(attempts.avoid, call.deadline).await?;
        // Taken after the queue: waiting for a slot does not count as the attempt's time.
        let deadline = attempts.deadline();
        let ready = instance.instance().ready.clone();
        attempts.avoid = Some(instance.instance().number);
        if backend.config().pin {
            // This instance may offer another definition than the listed one.
            let own = tool.and_then(|tool| ready.tools.get(tool.name()));
            call.refuse_if_held(own.map(|tool| &**tool).or(*tool))?;
        }
        let measured = backend.measure(&instance, tool.map_or("", Tool::name));
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
        })?;
        let meta = self.meta(deadline);
        let headers = call.headers(&ready, *tool)?;
        let frame = call.frame(handle.id(), &ready, *tool, &meta);
        handle.send_with(frame, headers)?;
        let answer = handle.answer().await?;
        measured.answered();
        let backend_time = sent.elapsed();
        if let Some(tool) = tool {
            tool.metrics(backend.metrics()).record_backend(backend_time);
            tool.note_time(backend_time);
        }
        let era = ready.dialect.version().era();
        Ok(AttemptAnswer { answer, era, queue, backend: backend_time })
    }

    /// Returns the call's metadata; with `tell_deadline` also the time that is left.
    fn meta(&self, deadline: Instant) -> Cow<'_, CallMeta> {
        let given = &self.call.meta;
        if !self.backend.config().tell_deadline {
            return Cow::Borrowed(given);
        }
        let left = deadline.duration_since(Instant::now()).as_millis();
        // The caller's own member of this name was removed before.
        let others = format!("{},\"{}\":{left}", given.others, meta::TIMEOUT);
        Cow::Owned(CallMeta { others, ..given.clone() })
    }
}

impl AttemptAnswer {
    /// Reads the answer. Takes `rate_status` only on success: an error keeps it for its own
    /// headers.
    pub(super) async fn into_reply(
        self,
        offload: &Offload,
        call: &Call,
        rate_status: &mut Option<RateStatus>,
        attempts: u32,
    ) -> Result<Reply, CallError> {
        let Self { answer, era, queue, backend } = self;
        let (result, ResultHead { kind, is_typed }) = read_answer(offload, answer).await?;
        if kind == ResultKind::InputRequired && call.meta.capabilities.is_none() {
            return Err(CallError::InputRequired);
        }
        let rate_status = rate_status.take().unwrap_or_default();
        Ok(Reply { result, kind, is_typed, era, queue, backend, rate_status, attempts })
    }
}

/// Reads an answer; a long one on a thread of its own.
async fn read_answer(offload: &Offload, answer: Answer) -> Result<(Bytes, ResultHead), CallError> {
    let (Answer::Result(text) | Answer::Error(text)) = &answer;
    offload.run_if_long(text.len(), || read_here(answer)).await
}

fn read_here(answer: Answer) -> Result<(Bytes, ResultHead), CallError> {
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => return Err(CallError::from_server_error(&error)),
    };
    let text =
        std::str::from_utf8(&result).map_err(|_| CallError::protocol("the result is not UTF-8"))?;
    let head = ResultHead::read(text).map_err(CallError::protocol)?;
    Ok((result, head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::offload::LONG;
    use crate::common::offload::testing::is_offloaded;

    #[test]
    fn only_a_long_answer_is_offloaded() {
        let read = |len: usize| async move {
            let around = "{\"a\":\"\"}".len();
            let result = format!("{{\"a\":\"{}\"}}", "x".repeat(len - around));
            let (read, head) =
                read_answer(&Offload::new(), Answer::Result(result.clone().into())).await.unwrap();
            assert_eq!((read, head.kind), (result.into(), ResultKind::Complete));
        };
        assert!(!is_offloaded(read(LONG)));
        assert!(is_offloaded(read(LONG + 1)));
    }
}
