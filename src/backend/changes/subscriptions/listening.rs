//! `subscriptions/listen` at a modern server.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{SUBSCRIBE_TIMEOUT, error, read};
use crate::backend::Ready;
use crate::backend::connection::call_notifications::{Event, Listener};
use crate::backend::connection::in_flight::{Answer, Failure};
use crate::common::ids::{CallId, TenantId};
use crate::protocol::jsonrpc::INTERNAL_ERROR;
use crate::protocol::jsonrpc::envelope::ErrorObject;

/// A subscription has no deadline of its own; this one is further off than any server lives.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A `subscriptions/listen` that the server has accepted. Dropping it cancels it.
pub(super) struct Listening {
    answer: Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>,
}

/// Why a server does not tell.
pub(super) enum NotListening {
    /// It will not.
    Refused(ErrorObject),
    /// It could not be asked, or not understood. Another time it may be.
    Failed,
}

impl Listening {
    /// Listens; also gives the resources that the server agreed to tell of, if it said.
    pub(super) async fn begin(
        ready: &Ready,
        filter: &Value,
    ) -> Result<(Self, Option<BTreeSet<String>>), NotListening> {
        let failed = |failure| NotListening::of(Err(failure));
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        let connection = &ready.connection;
        let mut ticket = connection
            .register(TenantId::gateway(), CallId::generate(), deadline, None)
            .map_err(failed)?;
        let (listener, mut events) = Listener::new(None);
        ticket.listen(listener);
        ticket.send(ready.dialect.listen(ticket.id(), filter)).map_err(failed)?;
        let mut answer: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(ticket.answer());
        let event = tokio::select! {
            // An answer may follow at once: first what came first.
            biased;
            // One that never acknowledges may tell all the same.
            event = timeout(SUBSCRIBE_TIMEOUT, events.recv()) => event.ok(),
            answer = &mut answer => return Err(NotListening::of(answer)),
        };
        let acknowledged = match event {
            // Nobody is left who could acknowledge: there is an answer.
            Some(None) => return Err(NotListening::of(answer.await)),
            Some(event) => event,
            None => None,
        };
        let resources = acknowledged.and_then(|event| match event {
            Event::Acknowledged(params) => acknowledged_resources(&params),
            _ => None,
        });
        Ok((Self { answer }, resources))
    }

    /// Done when the server has ended it.
    pub(super) async fn ended(listening: &mut Option<Self>) {
        match listening {
            Some(listening) => drop((&mut listening.answer).await),
            None => std::future::pending().await,
        }
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

impl NotListening {
    /// By what was answered instead of being acknowledged.
    fn of(answer: Result<Answer, Failure>) -> Self {
        match answer {
            Err(failure) if !is_final(&failure) => Self::Failed,
            answer => Self::Refused(match read(answer) {
                Ok(()) => error(INTERNAL_ERROR, "the server does not tell of changes"),
                Err(refused) => refused,
            }),
        }
    }
}

/// Whether asking again would end no better. What stands between may have failed with any other status.
fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::Http { status, retry_after: None } => {
            matches!(status, 400..=499 | 501) && !matches!(status, 408 | 425)
        }
        Failure::Unsendable(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_a_failure_that_may_pass() {
        let is_refused =
            |failure| matches!(NotListening::of(Err(failure)), NotListening::Refused(_));
        let http = |status, retry_after| Failure::Http { status, retry_after };
        for status in [400, 401, 404, 405, 501] {
            assert!(is_refused(http(status, None)), "{status}");
        }
        for status in [303, 408, 425, 500, 502, 503, 504] {
            assert!(!is_refused(http(status, None)), "{status}");
        }
        assert!(!is_refused(http(429, Some(Duration::from_secs(1)))));
        let reason = "it cannot be reached".into();
        assert!(!is_refused(Failure::Unreached { reason, detail: String::new() }));
        assert!(matches!(
            NotListening::of(Ok(Answer::Result("{}".into()))),
            NotListening::Refused(_)
        ));
    }
}
