//! One attempt at a call, from its slot to its answer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::retry::Attempts;
use super::{Call, CallError, Reply};
use crate::backend::Backend;
use crate::backend::connection::in_flight::{Answer, Patience};
use crate::backend::instance::tools::Tool;
use crate::backend::queue::InLine;
use crate::common::ids::TenantId;
use crate::common::offload::aside_if_long;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::{ResultHead, ResultKind};
use crate::protocol::mcp::{Era, meta};
use crate::tenants::limits::{Admission, Standing};

/// What a request other than a tool call takes, as long as nothing better is known.
const TYPICAL: Duration = Duration::from_millis(5);

/// A call on its way to its server.
pub(super) struct Sending<'a> {
    pub(super) server: &'a Backend,
    pub(super) tenant: &'a TenantId,
    pub(super) call: &'a Call,
    pub(super) tool: Option<&'a Tool>,
    /// Kept until the server is done with the call, whoever still waits for the answer.
    pub(super) admission: Arc<Admission>,
}

/// What came back.
pub(super) struct Sent {
    answer: Answer,
    era: Era,
    queue: Duration,
    backend: Duration,
}

impl Sending<'_> {
    /// Waits for a slot, and has one copy of the server answer.
    pub(super) async fn attempt(
        &self,
        in_line: InLine<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Result<Sent, CallError> {
        let Self { server, tool, call, .. } = self;
        let estimate = tool.map_or(TYPICAL, Tool::typical);
        // Who waits in line keeps its place: only what a copy takes is an attempt's time.
        let mut permit = tokio::select! {
            biased;
            permit = in_line.slot(estimate, call.deadline) => permit?,
            // There may be a long line before it still, or a pause.
            refusal = server.unavailable() => return Err(refusal.into()),
        };
        let lease = server.instance_permit(attempts.avoid, call.deadline).await?;
        let deadline = attempts.deadline();
        let ready = lease.instance().ready.clone();
        attempts.avoid = Some(lease.instance().number);
        if server.config().pin {
            // This copy may have changed it by now, whatever the others have.
            let own = tool.and_then(|tool| ready.tools.get(tool.name()));
            call.must_not_be_held(own.map(|tool| &**tool).or(*tool))?;
        }
        let measured = server.measure(&lease, tool.map_or("", Tool::name));
        permit.carry((lease, self.admission.clone()));

        let sent = Instant::now();
        let queue = sent.duration_since(call.arrived);
        server.metrics().queue_seconds.observe(queue.as_secs_f64());
        let mut ticket =
            ready.connection.register(self.tenant.clone(), call.id, deadline, Some(permit))?;
        // Before the frame is sent: what the server says first must be heard too.
        if let Some(listener) = &call.listener {
            ticket.listen(listener.clone());
        }
        if let Some(until) = call.deadline_max {
            ticket.be_patient(Patience { step: server.timeout(), until });
        }
        let meta = self.meta(deadline);
        let headers = call.headers(&ready, *tool)?;
        let frame = call.frame(ticket.id(), &ready, *tool, &meta);
        ticket.send_with(frame, headers)?;
        let answer = ticket.answer().await?;
        measured.answered();
        let backend = sent.elapsed();
        if let Some(tool) = tool {
            tool.metrics(server.metrics()).record_backend(backend);
            tool.note_time(backend);
        }
        Ok(Sent { answer, era: ready.dialect.version().era(), queue, backend })
    }

    /// What goes with the call; for servers that want to know, also how long they have.
    fn meta(&self, deadline: Instant) -> Cow<'_, CallMeta> {
        let said = &self.call.meta;
        if !self.server.config().tell_deadline {
            return Cow::Borrowed(said);
        }
        let left = deadline.duration_since(Instant::now()).as_millis();
        // No caller's member of that name is among the others.
        let others = format!("{},\"{}\":{left}", said.others, meta::TIMEOUT);
        Cow::Owned(CallMeta { others, ..said.clone() })
    }
}

impl Sent {
    /// Where the tenant stands is taken along, unless it is no reply.
    pub(super) async fn into_reply(
        self,
        call: &Call,
        standing: &mut Option<Standing>,
        attempts: u32,
    ) -> Result<Reply, CallError> {
        let Self { answer, era, queue, backend } = self;
        let (result, ResultHead { kind, is_typed }) = read_answer(answer).await?;
        if kind == ResultKind::InputRequired && call.meta.capabilities.is_none() {
            return Err(CallError::InputRequired);
        }
        let standing = standing.take().unwrap_or_default();
        Ok(Reply { result, kind, is_typed, era, queue, backend, standing, attempts })
    }
}

/// Reads an answer, a long one aside.
async fn read_answer(answer: Answer) -> Result<(Bytes, ResultHead), CallError> {
    let (Answer::Result(text) | Answer::Error(text)) = &answer;
    aside_if_long(text.len(), || read_now(answer)).await
}

fn read_now(answer: Answer) -> Result<(Bytes, ResultHead), CallError> {
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
    use crate::common::offload::testing::is_done_aside;

    #[test]
    fn only_a_long_answer_is_read_aside() {
        let read = |len: usize| async move {
            let around = "{\"a\":\"\"}".len();
            let result = format!("{{\"a\":\"{}\"}}", "x".repeat(len - around));
            let (read, head) = read_answer(Answer::Result(result.clone().into())).await.unwrap();
            assert_eq!((read, head.kind), (result.into(), ResultKind::Complete));
        };
        assert!(!is_done_aside(read(LONG)));
        assert!(is_done_aside(read(LONG + 1)));
    }
}
