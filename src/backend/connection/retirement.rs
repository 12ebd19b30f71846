//! What a connection asks of whoever keeps it: to be replaced, or to be left alone for a while.

use std::borrow::Cow;
use std::sync::OnceLock;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Connection;
use super::in_flight::Failure;

/// What is asked so far.
#[derive(Default)]
pub(crate) struct Wishes {
    /// Why another connection should take its place, once one should.
    retired: OnceLock<Failure>,
    wants_replacement: CancellationToken,
    /// Until when the server asked to be left alone.
    paused_until: watch::Sender<Option<Instant>>,
}

impl Connection {
    /// From now on no call is taken: another connection should take this one's place. Calls that are under
    /// way go on.
    pub fn retire(&self, reason: impl Into<Cow<'static, str>>, detail: String) {
        let reason = reason.into();
        let _ = self.wishes.retired.set(Failure::Unreached { reason, detail });
        self.wishes.wants_replacement.cancel();
    }

    /// Cancelled when another connection should take this one's place.
    pub fn wants_replacement(&self) -> &CancellationToken {
        &self.wishes.wants_replacement
    }

    /// Why, if it should.
    pub fn retired(&self) -> Option<&Failure> {
        self.wishes.retired.get()
    }

    /// The server wants to be left alone until then.
    pub fn pause(&self, until: Instant) {
        self.wishes.paused_until.send_if_modified(|known| {
            let is_later = known.is_none_or(|known| known < until);
            *known = if is_later { Some(until) } else { *known };
            is_later
        });
    }

    /// Until when the server wants to be left alone, as far as it has said.
    pub fn paused_until(&self) -> watch::Receiver<Option<Instant>> {
        self.wishes.paused_until.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use serde_json::json;

    use crate::backend::changes::recipients::Recipients;
    use crate::backend::connection::in_flight::Answer;
    use crate::backend::testing::{PIPE_LEN, connect};
    use crate::common::ids::ServerId;
    use crate::protocol::mcp::requests::discover;

    #[tokio::test(start_paused = true)]
    async fn a_retired_connection_ends_its_calls_and_takes_no_others() {
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
            Failure::Unreached { reason: "it is gone".into(), detail: "first".to_owned() };
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
