//! A `subscriptions/listen` request at a modern server.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{SUBSCRIBE_TIMEOUT, error, read};
use crate::backend::Ready;
use crate::backend::connection::call_notifications::{CallNotification, NotificationSender};
use crate::backend::connection::{Answer, NewCall, RequestError};
use crate::protocol::jsonrpc::INTERNAL_ERROR;
use crate::protocol::jsonrpc::envelope::ErrorObject;

/// A listen request has no deadline of its own; this one outlasts any server.
pub(super) const LISTEN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A request that the server has accepted. Dropping it cancels it.
pub(super) struct ListenRequest {
    answer: Pin<Box<dyn Future<Output = Result<Answer, RequestError>> + Send>>,
}

pub(super) enum ListenError {
    Refused(ErrorObject),
    /// The request failed in a way that may pass.
    Failed,
}

impl ListenRequest {
    /// Sends the request and waits until the server acknowledges it. Also returns the resources
    /// that the server agreed to report, if it named them.
    pub(super) async fn open(
        ready: &Ready,
        filter: &Value,
    ) -> Result<(Self, Option<BTreeSet<String>>), ListenError> {
        let failed = |failure| ListenError::of(Err(failure));
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        let connection = &ready.connection;
        let (listener, mut events) = NotificationSender::new(None, None);
        let call = NewCall { listener: Some(listener), ..NewCall::gateway(deadline) };
        let mut handle = connection.register(call).map_err(failed)?;
        handle.send(ready.dialect.listen(handle.id(), filter)).map_err(failed)?;
        let mut answer: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(handle.answer());
        let event = tokio::select! {
            // An answer may follow the acknowledgement at once: handle them in order.
            biased;
            event = timeout(SUBSCRIBE_TIMEOUT, events.recv()) => event,
            answer = &mut answer => return Err(ListenError::of(answer)),
        };
        let resources = match event {
            Ok(Some(CallNotification::Acknowledged(params))) => acknowledged_resources(&params),
            // The channel was closed by the answer.
            Ok(None) => return Err(ListenError::of(answer.await)),
            // A server that never acknowledges may report changes all the same.
            Ok(Some(_)) | Err(_) => None,
        };
        Ok((Self { answer }, resources))
    }

    /// Waits until the server has ended the request.
    pub(super) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.answer.as_mut().poll(context).map(drop)
    }
}

fn acknowledged_resources(params: &[u8]) -> Option<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Acknowledged {
        notifications: Notifications,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Notifications {
        resource_subscriptions: Option<BTreeSet<String>>,
    }
    let acknowledged: Acknowledged = serde_json::from_slice(params).ok()?;
    acknowledged.notifications.resource_subscriptions
}

impl ListenError {
    /// Classifies an answer that came instead of an acknowledgement.
    fn of(answer: Result<Answer, RequestError>) -> Self {
        match answer {
            Err(failure) if !is_final(&failure) => Self::Failed,
            answer => Self::Refused(match read(answer) {
                Ok(()) => error(INTERNAL_ERROR, "the server does not report changes"),
                Err(refused) => refused,
            }),
        }
    }
}

/// Returns whether a retry is of no use. Other statuses may come from a proxy that fails for a
/// time.
fn is_final(failure: &RequestError) -> bool {
    match failure {
        RequestError::Http { status, retry_after: None } => {
            matches!(status, 400..=499 | 501) && !matches!(status, 408 | 425)
        }
        RequestError::Unsendable(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_distinguished_from_a_failure_that_may_pass() {
        let is_refused = |failure| matches!(ListenError::of(Err(failure)), ListenError::Refused(_));
        let http = |status, retry_after| RequestError::Http { status, retry_after };
        for status in [400, 401, 404, 405, 501] {
            assert!(is_refused(http(status, None)), "{status}");
        }
        for status in [303, 408, 425, 500, 502, 503, 504] {
            assert!(!is_refused(http(status, None)), "{status}");
        }
        assert!(!is_refused(http(429, Some(Duration::from_secs(1)))));
        let reason = "it cannot be reached".into();
        assert!(!is_refused(RequestError::Unreached { reason, detail: String::new() }));
        assert!(matches!(
            ListenError::of(Ok(Answer::Result("{}".into()))),
            ListenError::Refused(_)
        ));
    }
}
