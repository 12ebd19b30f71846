//! Answers a call as a stream of events: the tool's progress, then its result or an error. The head
//! of the response goes out at once, and a comment after each 15 s of silence, so that no proxy
//! takes the connection for dead.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::connection::call_notifications::{CallNotification, CallNotifications};
use crate::common::byte_budget::TenantBytes;
use crate::common::offload::Offload;
use crate::gateway::{Held, no_room};
use crate::http::error::HttpError;
use crate::http::headers::{ATTEMPTS, CALL_ID, OUTCOME, REPLAYED};
use crate::http::sse::{self, MessageSource, named_event};
use crate::http::unsent::take_held;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::meta;
use crate::tenants::limits::RateStatus;

pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// The events of one call. Dropping them cancels the call, unless it is detached.
struct CallEvents {
    /// `None` once the call has ended.
    running: Option<AbortOnDropHandle<LastEvent>>,
    notifications: CallNotifications,
    last: Option<LastEvent>,
}

struct LastEvent {
    event: Bytes,
    /// The room of the answer, until the event is counted itself.
    _held: Option<Held>,
}

/// Responds with events. `answer` makes the response that a caller without events would get.
pub(super) fn respond(
    answer: impl Future<Output = Response<Body>> + Send + 'static,
    notifications: CallNotifications,
    unsent: Arc<TenantBytes>,
    offload: Offload,
) -> Response<Body> {
    // A stream is not polled while its client does not read, but the call's deadline must hold. So
    // the call has a task of its own.
    let call = tokio::spawn(async move { LastEvent::of(answer.await, &unsent, &offload).await });
    let running = Some(AbortOnDropHandle::new(call));
    sse::respond(CallEvents { running, notifications, last: None })
}

impl MessageSource for CallEvents {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let notification = match &mut self.running {
                Some(running) => tokio::select! {
                    biased;
                    Some(notification) = self.notifications.recv() => notification,
                    last = running => {
                        (self.running, self.last) = (None, last.ok());
                        continue;
                    }
                },
                // All notifications before the answer have been received already.
                None => match self.notifications.try_recv() {
                    Some(notification) => notification,
                    None => return self.last.take().map(|last| last.event),
                },
            };
            if let Some(progress) = progress(notification) {
                return Some(progress);
            }
        }
    }

    fn event(message: Bytes) -> Bytes {
        message
    }
}

impl LastEvent {
    /// Turns a response into the last event, with the parts of its head that callers need.
    async fn of(
        mut response: Response<Body>,
        unsent: &Arc<TenantBytes>,
        offload: &Offload,
    ) -> Self {
        let held = take_held(&mut response);
        let (mut head, body) = response.into_parts();
        let mut body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let held = held.map_or_else(|| unsent.take(body.len()).map(Arc::new), Ok);
        if let Err(full) = held {
            let error = HttpError::from(no_room(full, unsent, RateStatus::default()));
            let (refused, problem) = error.into_response().into_parts();
            (head.status, body) =
                (refused.status, to_bytes(problem, usize::MAX).await.unwrap_or_default());
            head.headers.insert(OUTCOME.clone(), HeaderValue::from_static("error"));
        }
        let (status, headers) = (head.status, head.headers);
        let is_error = text(&headers, &OUTCOME) == Some("error");
        let (name, member) = if is_error { ("error", "problem") } else { ("result", "result") };
        let number = |name| text(&headers, name).and_then(|text| text.parse::<u64>().ok());
        let about = json!({
            "call": text(&headers, &CALL_ID),
            "status": status.as_u16(),
            "outcome": text(&headers, &OUTCOME),
            "attempts": number(&ATTEMPTS),
            "replayed": headers.contains_key(&REPLAYED),
            "retry_after": number(&header::RETRY_AFTER),
        });
        let about = about.to_string();
        let start = format!("{},\"{member}\":", about.trim_end_matches('}'));
        let len = body.len();
        let write = move || named_event(name, &[start.as_bytes(), &body, b"}"]);
        Self { event: offload.run_if_long(len, write).await, _held: held.ok() }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns a server's progress as an event, without the token, which is the gateway's.
fn progress(notification: CallNotification) -> Option<Bytes> {
    let CallNotification::Progress(params) = notification else { return None };
    let params = String::from_utf8_lossy(&params);
    // Ambiguous parameters, with a name that appears twice, are dropped.
    let params = Members::parse(&params).ok()?;
    let without_token = params.rewrite(
        |name, _| match name {
            meta::PROGRESS_TOKEN => MemberChange::Drop,
            _ => MemberChange::Keep,
        },
        &[],
    );
    Some(named_event("progress", &[without_token.as_bytes()]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use serde_json::Value;
    use tokio::time::Instant;

    use super::*;
    use crate::backend::connection::call_notifications::NotificationSender;
    use crate::common::byte_budget::ByteBudget;
    use crate::http::unsent::hold;

    async fn next(response: &mut Response<Body>) -> Option<String> {
        let frame = response.body_mut().frame().await?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }

    fn events(
        answer: impl Future<Output = Response<Body>> + Send + 'static,
        unsent: &Arc<TenantBytes>,
    ) -> Response<Body> {
        let notifications = NotificationSender::new(None, None).1;
        respond(answer, notifications, unsent.clone(), Offload::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_comment_breaks_each_15_s_of_silence() {
        let unsent = ByteBudget::new(1 << 20, 4 << 20).tenant();
        let mut response = events(std::future::pending(), &unsent);
        assert_eq!(response.headers()[header::CONTENT_TYPE], EVENT_STREAM);
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(next(&mut response).await.unwrap(), ":\n\n");
            assert_eq!(began.elapsed().as_secs(), 15);
        }
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_counts_and_one_without_room_is_an_error() {
        let unsent = ByteBudget::new(1 << 20, 4 << 20).tenant();
        let answer = |len: usize| async move {
            let outcome = [(OUTCOME.clone(), "ok")];
            (outcome, format!("\"{}\"", "x".repeat(len))).into_response()
        };
        let mut waiting = events(answer(600 << 10), &unsent);
        let held = async || {
            while unsent.held() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        held().await;
        let refused = next(&mut events(answer(600 << 10), &unsent)).await.unwrap();
        let data = refused.strip_prefix("event: error\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["problem"]["code"], "tenant_busy");
        assert!(next(&mut waiting).await.unwrap().starts_with("event: result\ndata: {"));
        assert_eq!((next(&mut waiting).await, unsent.held()), (None, 0));
        // A plain call's answer has its room already.
        let room = unsent.take(900 << 10).unwrap();
        let with_room = async move {
            let mut response = answer(900 << 10).await;
            hold(&mut response, Some(Arc::new(room)));
            response
        };
        let event = next(&mut events(with_room, &unsent)).await.unwrap();
        assert!(event.starts_with("event: result"));
        assert_eq!(unsent.held(), 0);
    }
}
