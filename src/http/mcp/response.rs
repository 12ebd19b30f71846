//! One request on its way: what its server says meanwhile, and then its answer.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use tokio::time::timeout;

use super::rpc;
use super::stream::sse;
use super::translate::Reshape;
use crate::backend::connection::call_notifications::CallNotifications;
use crate::common::ids::CallId;
use crate::common::offload::offload_if_long;
use crate::gateway::{CallError, Reply};
use crate::http::error::rate_headers;
use crate::http::rest::call::{ATTEMPTS, CALL_ID, call_id_value};
use crate::tenants::limits::RateStatus;

/// How long a request may be silent before its response begins.
const SILENCE_MAX: Duration = Duration::from_secs(25);

/// The outcome of a call; `None` if it was cancelled and shall not be answered.
pub(super) type Outcome = Option<Result<Reply, CallError>>;

type Running = Pin<Box<dyn Future<Output = Option<Answered>> + Send>>;

/// An answer in its client's terms, and what its response says besides.
struct Answered {
    status: StatusCode,
    message: Bytes,
    rate_status: RateStatus,
    attempts: u32,
}

/// A call that may have something to say before its answer.
pub(super) struct Exchange {
    /// `None` once it has ended.
    running: Option<Running>,
    events: CallNotifications,
    answer: Option<Option<Answered>>,
    reshape: Arc<Reshape>,
}

enum Step {
    CallNotification(Bytes),
    End(Option<Answered>),
}

impl Exchange {
    pub(super) fn new(
        running: impl Future<Output = Outcome> + Send + 'static,
        events: CallNotifications,
        reshape: Reshape,
    ) -> Self {
        let reshape = Arc::new(reshape);
        let answering = reshape.clone();
        let running = async move { Some(answering.answer(running.await?).await) };
        Self { running: Some(Box::pin(running)), events, answer: None, reshape }
    }

    /// Answers with JSON if the answer is the first thing that comes, else with a stream. So nobody has to guess
    /// beforehand whether a server will have something to say. After a long silence it is a stream, too, so that
    /// nobody between takes the connection for dead. `None`: it was cancelled.
    pub(super) async fn respond(mut self, call: CallId) -> Option<Response<Body>> {
        let mut response = match timeout(SILENCE_MAX, self.step()).await {
            Ok(Step::CallNotification(first)) => {
                sse::respond(Begun { first: Some(first), exchange: Some(self) })
            }
            Ok(Step::End(answer)) => answer?.respond(),
            Err(_) => sse::respond(Begun { first: None, exchange: Some(self) }),
        };
        response.headers_mut().insert(CALL_ID.clone(), call_id_value(call));
        Some(response)
    }

    /// The next event, or the answer when all events before it are out. Safe to give up.
    async fn step(&mut self) -> Step {
        loop {
            if let Some(answer) = &mut self.answer {
                // All that came before the answer is there already.
                let Some(event) = self.events.try_recv() else { return Step::End(answer.take()) };
                match self.reshape.event(event) {
                    Some(message) => return Step::CallNotification(message),
                    None => continue,
                }
            }
            let running = self.running.as_mut().expect("there is no answer yet");
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => {
                    if let Some(message) = self.reshape.event(event) {
                        return Step::CallNotification(message);
                    }
                }
                answer = poll_fn(|cx| running.as_mut().poll(cx)) => {
                    self.running = None;
                    self.answer = Some(answer);
                }
            }
        }
    }
}

/// An exchange that has become a stream.
struct Begun {
    first: Option<Bytes>,
    /// `None` after the answer.
    exchange: Option<Exchange>,
}

impl sse::Source for Begun {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        match self.exchange.as_mut()?.step().await {
            Step::CallNotification(event) => Some(event),
            Step::End(answer) => {
                self.exchange = None;
                answer.map(|answer| answer.message)
            }
        }
    }
}

/// A call that has nothing to say before its answer.
pub(super) async fn respond_at_once(
    outcome: Result<Reply, CallError>,
    reshape: Reshape,
    call: CallId,
) -> Response<Body> {
    let mut response = Arc::new(reshape).answer(outcome).await.respond();
    response.headers_mut().insert(CALL_ID.clone(), call_id_value(call));
    response
}

impl Reshape {
    /// The answer; a long one is written aside.
    async fn answer(self: Arc<Self>, outcome: Result<Reply, CallError>) -> Answered {
        let (rate_status, attempts, len) = match &outcome {
            Ok(reply) => (reply.rate_status.clone(), reply.attempts, reply.result.len()),
            Err(error) => (error.rate_status().cloned().unwrap_or_default(), error.attempts(), 0),
        };
        let (status, message) = offload_if_long(len, move || self.message(outcome)).await;
        Answered { status, message, rate_status, attempts }
    }
}

impl Answered {
    fn respond(self) -> Response<Body> {
        let mut response = rpc::respond(self.status, self.message);
        response.headers_mut().insert(ATTEMPTS.clone(), self.attempts.into());
        rate_headers(response.headers_mut(), &self.rate_status);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::common::offload::LONG;
    use crate::common::offload::testing::is_offloaded;
    use crate::protocol::mcp::results::ResultKind;
    use crate::protocol::mcp::{Era, method};

    #[test]
    fn only_a_long_answer_is_written_aside() {
        let answer = |len: usize| async move {
            let around = "{\"resultType\":\"complete\",\"a\":\"\"}".len();
            let fill = "x".repeat(len - around);
            let reply = Reply {
                result: format!("{{\"resultType\":\"complete\",\"a\":\"{fill}\"}}").into(),
                kind: ResultKind::Complete,
                is_typed: true,
                era: Era::Modern,
                queue: Duration::ZERO,
                backend: Duration::ZERO,
                rate_status: RateStatus::default(),
                attempts: 1,
            };
            let reshape = Reshape {
                era: Era::Legacy,
                id: RawValue::from_string("7".to_owned()).unwrap(),
                progress_token: None,
                method: method::TOOLS_CALL,
                uri: None,
                state: None,
            };
            let answered = Arc::new(reshape).answer(Ok(reply)).await;
            let message: serde_json::Value = serde_json::from_slice(&answered.message).unwrap();
            assert_eq!(message["result"], serde_json::json!({"a": fill}));
        };
        assert!(!is_offloaded(answer(LONG)));
        assert!(is_offloaded(answer(LONG + 1)));
    }
}
