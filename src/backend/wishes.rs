//! What a connection asks of whoever keeps it: to be replaced, or to be left alone for a while.

use std::sync::OnceLock;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Failure};

/// What is asked so far.
#[derive(Default)]
pub(super) struct Wishes {
    /// Why another connection should take its place, once one should.
    retired: OnceLock<Failure>,
    wants_replacement: CancellationToken,
    /// Until when the server asked to be left alone.
    paused_until: watch::Sender<Option<Instant>>,
}

impl Connection {
    /// From now on no call is taken: another connection should take this one's place. Calls that are under
    /// way go on.
    pub fn retire(&self, reason: &'static str, detail: String) {
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
