//! Responds to a call: with JSON, or with a stream if the server's notifications come first.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::modern::questions::QuestionDesk;
use super::rpc;
use super::translate::{Translated, Translation};
use crate::backend::changes::recipients::ServerRequest;
use crate::backend::connection::call_notifications::{CallNotification, CallNotifications};
use crate::common::ids::CallId;
use crate::gateway::{CallError, Held, Reply};
use crate::http::headers::{ATTEMPTS, CALL_ID, add_rate_status, text_value};
use crate::http::sse;
use crate::http::unsent::hold;
use crate::tenants::limits::RateStatus;

/// How long a response may be silent before it becomes a stream, which has keep-alives. Otherwise
/// proxies may take the connection for dead.
const SILENCE_MAX: Duration = Duration::from_secs(25);

/// Resolves to the outcome of a call, or to `None` if it was cancelled and gets no answer.
type Running = Pin<Box<dyn Future<Output = Option<RpcResponse>> + Send>>;

/// A JSON-RPC response, and the HTTP status and headers that go with it.
pub(super) struct RpcResponse {
    status: StatusCode,
    message: Bytes,
    /// Counts the message's bytes until the client has taken them.
    held: Option<Held>,
    rate_status: RateStatus,
    attempts: u32,
}

/// The response to a call during which its server may send notifications.
pub(super) struct CallResponse {
    /// `None` once the call has ended.
    running: Option<Running>,
    notifications: CallNotifications,
    /// The outcome of `running`.
    response: Option<RpcResponse>,
    translation: Arc<Translation>,
    /// Puts the server's questions to the client, if it can be asked.
    desk: Option<QuestionDesk>,
    /// A notification that was taken before the stream began.
    first: Option<Bytes>,
    /// Nothing follows the response.
    is_over: bool,
}

enum Step {
    Notification(Bytes),
    End(Option<RpcResponse>),
}

impl CallResponse {
    pub(super) fn new(
        outcome: impl Future<Output = Option<Result<Reply, CallError>>> + Send + 'static,
        notifications: CallNotifications,
        translation: Translation,
    ) -> Self {
        let translation = Arc::new(translation);
        let translating = translation.clone();
        let running = async move { Some(RpcResponse::new(translating, outcome.await?).await) };
        let running: Option<Running> = Some(Box::pin(running));
        let (response, desk, first) = (None, None, None);
        Self { running, notifications, response, translation, desk, first, is_over: false }
    }

    /// Puts the server's questions to the client.
    pub(super) fn with_desk(self, desk: QuestionDesk) -> Self {
        Self { desk: Some(desk), ..self }
    }

    /// Responds with JSON if the result comes first, and with a stream otherwise. So nobody has to
    /// guess whether the server will send notifications. Returns `None` if the call was cancelled.
    pub(super) async fn respond(mut self, call: CallId) -> Option<Response<Body>> {
        let response = match timeout(SILENCE_MAX, self.step()).await {
            Ok(Step::End(response)) => response?.respond(),
            Ok(Step::Notification(first)) => {
                sse::respond(Self { first: Some(first), ..self.in_task() })
            }
            Err(_) => sse::respond(self.in_task()),
        };
        Some(with_call_id(response, call))
    }

    /// Gives the call a task of its own: a stream is not polled while its client does not read, but
    /// the call's deadline must hold. The task ends with the stream.
    fn in_task(mut self) -> Self {
        // A call that may go on after this response has a task already.
        if self.desk.is_none()
            && let Some(running) = self.running.take()
        {
            let task = AbortOnDropHandle::new(tokio::spawn(running));
            self.running = Some(Box::pin(async { task.await.ok().flatten() }));
        }
        self
    }

    /// Returns the next notification, or the response once all notifications before it are out.
    /// Cancel-safe.
    async fn step(&mut self) -> Step {
        loop {
            let event = match &mut self.running {
                Some(running) => tokio::select! {
                    biased;
                    Some(event) = self.notifications.recv() => event,
                    response = running => {
                        self.response = response;
                        self.running = None;
                        continue;
                    }
                },
                // All notifications before the response have been received already.
                None => match self.notifications.try_recv() {
                    Some(event) => event,
                    None => return Step::End(self.response.take()),
                },
            };
            let event = match event {
                CallNotification::Question(question) => match self.put(*question) {
                    Some(response) => return Step::End(Some(response)),
                    None => continue,
                },
                event => event,
            };
            if let Some(message) = self.translation.notification(event) {
                return Step::Notification(message);
            }
        }
    }
}

impl CallResponse {
    /// Parks the call, and returns the response that asks the client. `None` if the question was
    /// refused.
    fn put(&mut self, question: ServerRequest) -> Option<RpcResponse> {
        let Some(desk) = &self.desk else {
            question.refuse("the caller cannot be asked");
            return None;
        };
        let message = desk.put(question, &self.translation, &mut self.notifications)?;
        self.running = None;
        let (status, rate_status) = (StatusCode::OK, RateStatus::default());
        Some(RpcResponse { status, message, held: None, rate_status, attempts: 1 })
    }
}

impl sse::MessageSource for CallResponse {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.is_over {
            return None;
        }
        match self.step().await {
            Step::Notification(message) => Some(message),
            Step::End(response) => {
                self.is_over = true;
                response.map(|response| response.message)
            }
        }
    }
}

/// Responds to a call whose client takes no notifications.
pub(super) async fn respond_with_json(
    outcome: Result<Reply, CallError>,
    translation: Translation,
    call: CallId,
) -> Response<Body> {
    let response = RpcResponse::new(Arc::new(translation), outcome).await;
    with_call_id(response.respond(), call)
}

fn with_call_id(mut response: Response<Body>, call: CallId) -> Response<Body> {
    response.headers_mut().insert(CALL_ID.clone(), text_value(call.to_string()));
    response
}

impl RpcResponse {
    /// Translates an outcome. A long result is offloaded.
    async fn new(translation: Arc<Translation>, outcome: Result<Reply, CallError>) -> Self {
        let (rate_status, attempts, len) = match &outcome {
            Ok(reply) => (reply.rate_status.clone(), reply.attempts, reply.result.len()),
            Err(error) => (error.rate_status().cloned().unwrap_or_default(), error.attempts(), 0),
        };
        let offload = translation.offload.clone();
        let translated = offload.run_if_long(len, move || translation.response(outcome)).await;
        let Translated { status, message, held } = translated;
        Self { status, message, held, rate_status, attempts }
    }

    fn respond(self) -> Response<Body> {
        let mut response = rpc::respond(self.status, self.message);
        hold(&mut response, self.held);
        response.headers_mut().insert(ATTEMPTS.clone(), self.attempts.into());
        add_rate_status(response.headers_mut(), &self.rate_status);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::common::byte_budget::BytePermit;
    use crate::common::offload::testing::is_offloaded;
    use crate::common::offload::{LONG, Offload};
    use crate::protocol::mcp::results::ResultKind;
    use crate::protocol::mcp::{Era, method};

    #[test]
    fn only_a_long_result_is_offloaded() {
        let answer = |len: usize| async move {
            let around = "{\"resultType\":\"complete\",\"a\":\"\"}".len();
            let fill = "x".repeat(len - around);
            let reply = Reply {
                result: format!("{{\"resultType\":\"complete\",\"a\":\"{fill}\"}}").into(),
                held: Arc::new(BytePermit::nothing()),
                kind: ResultKind::Complete,
                is_typed: true,
                era: Era::Modern,
                queue: Duration::ZERO,
                backend: Duration::ZERO,
                rate_status: RateStatus::default(),
                attempts: 1,
                run: 0,
            };
            let translation = Translation {
                asks_by_url: false,
                era: Era::Legacy,
                id: RawValue::from_string("7".to_owned()).unwrap(),
                call: CallId::generate(),
                progress_token: None,
                method: method::TOOLS_CALL,
                uri: None,
                state: None,
                exposes: None,
                tasks: None,
                changed: None,
                offload: Offload::new(),
            };
            let answered = RpcResponse::new(Arc::new(translation), Ok(reply)).await;
            let message: serde_json::Value = serde_json::from_slice(&answered.message).unwrap();
            assert_eq!(message["result"], serde_json::json!({"a": fill}));
        };
        assert!(!is_offloaded(answer(LONG)));
        assert!(is_offloaded(answer(LONG + 1)));
    }
}
