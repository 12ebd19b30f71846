//! When a modern server is asked again that ended a subscription, or that could not be asked.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The pause before the next subscription. It grows each time, unless the one before was there for a while: over HTTP,
/// streams are cut off now and then.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);
const A_WHILE: Duration = Duration::from_secs(10);
/// When a server could not be asked for so many resources in a row, it is not asked for the others now.
const IN_A_ROW_MAX: usize = 3;

/// The pauses between subscriptions.
pub(super) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: PAUSE }
    }
}

impl Pauses {
    /// The one after a subscription that was there for so long.
    pub(super) fn after(&mut self, lasted: Duration) -> Duration {
        let pause = if lasted >= A_WHILE { PAUSE } else { self.next };
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// The resources that a server could not be asked for.
#[derive(Default)]
pub(super) struct Failures {
    uris: BTreeSet<String>,
    again: Option<Instant>,
    in_a_row: usize,
}

impl Failures {
    /// It could be asked, or is asked anew for one after the other.
    pub(super) fn end(&mut self) {
        self.in_a_row = 0;
    }

    /// It could not, once more. Says whether that is so whatever it is asked for.
    pub(super) fn note(&mut self, pauses: &mut Pauses) -> bool {
        self.again.get_or_insert_with(|| Instant::now() + pauses.after(Duration::ZERO));
        self.in_a_row += 1;
        self.in_a_row >= IN_A_ROW_MAX
    }

    /// This is one that it is to be asked for again.
    pub(super) fn add(&mut self, uri: &str) {
        self.uris.insert(uri.to_owned());
    }

    /// Waits until it is time to ask for them again, and gives them.
    pub(super) async fn due(&mut self) -> BTreeSet<String> {
        match self.again {
            Some(again) => sleep_until(again).await,
            None => std::future::pending().await,
        }
        self.again = None;
        std::mem::take(&mut self.uris)
    }
}
