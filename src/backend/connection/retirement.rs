//! Requests of a connection to its supervisor: to be replaced, or to get no calls for a while.

use std::borrow::Cow;
use std::sync::OnceLock;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Connection;
use super::answer::RequestError;

#[derive(Default)]
pub(super) struct Retirement {
    /// The error of calls that come after the retirement.
    error: OnceLock<RequestError>,
    wants_replacement: CancellationToken,
    paused_until: watch::Sender<Option<Instant>>,
}

impl Connection {
    /// Refuses new calls from now on, and asks for a replacement. In-flight calls go on.
    pub fn retire(&self, reason: impl Into<Cow<'static, str>>, detail: String) {
        let error = RequestError::Unreached { reason: reason.into(), detail };
        let _ = self.retirement.error.set(error);
        self.retirement.wants_replacement.cancel();
    }

    /// Returns a token that is cancelled when the connection should be replaced.
    pub fn wants_replacement(&self) -> &CancellationToken {
        &self.retirement.wants_replacement
    }

    /// Returns the error of new calls, once the connection is retired.
    pub fn retired(&self) -> Option<&RequestError> {
        self.retirement.error.get()
    }

    /// Notes that the server wants no calls until then. A pause is never shortened.
    pub fn pause(&self, until: Instant) {
        self.retirement.paused_until.send_if_modified(|known| {
            let is_later = *known < Some(until);
            if is_later {
                *known = Some(until);
            }
            is_later
        });
    }

    pub fn paused_until(&self) -> watch::Receiver<Option<Instant>> {
        self.retirement.paused_until.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use serde_json::json;

    use crate::backend::changes::recipients::Recipients;
    use crate::backend::connection::Answer;
    use crate::backend::testing::{PIPE_LEN, connect};
    use crate::common::ids::ServerId;
    use crate::protocol::mcp::requests::discover;

    #[tokio::test(start_paused = true)]
    async fn a_retired_connection_completes_its_calls_and_takes_no_others() {
        let recipients = Recipients::new(ServerId::parse("test").unwrap(), None);
        let (connection, mut peer) = connect(PIPE_LEN, recipients);
        let deadline = Instant::now() + Duration::from_secs(5);
        let caller = connection.clone();
        let call = tokio::spawn(async move { caller.request(deadline, discover).await });
        let request = peer.receive().await;
        assert!(!connection.wants_replacement().is_cancelled());
        connection.retire("it is gone", "first".to_owned());
        connection.retire("it is gone", "second".to_owned());
        assert!(connection.wants_replacement().is_cancelled() && !connection.is_closed());
        let refused =
            RequestError::Unreached { reason: "it is gone".into(), detail: "first".to_owned() };
        assert_eq!(connection.request(deadline, discover).await, Err(refused));
        peer.answer(&request["id"], json!({})).await;
        assert_eq!(call.await.unwrap(), Ok(Answer::Result("{}".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_pause_counts() {
        let recipients = Recipients::new(ServerId::parse("test").unwrap(), None);
        let (connection, _peer) = connect(PIPE_LEN, recipients);
        let in_secs = |seconds| Instant::now() + Duration::from_secs(seconds);
        let paused_until = connection.paused_until();
        assert_eq!(*paused_until.borrow(), None);
        for seconds in [2, 5, 3] {
            connection.pause(in_secs(seconds));
        }
        assert_eq!(*paused_until.borrow(), Some(in_secs(5)));
    }
}
