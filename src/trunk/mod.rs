//! The trunk as people see it: who is on it now, who waits, and who was there a while ago.
//!
//! ```text
//!  registry ──▶ snapshot ──▶ frame ──▶ feed ──▶ viewers (the live page, `top`)   while any looks
//!     │
//!     └── once a second ──▶ history (15 minutes), shares (an hour) ◀── refusals
//! ```
//!
//! - [`snapshot`]: all servers at one moment; [`layout`]: the place of each call among the slots
//! - [`frame`]: a snapshot in JSON, and the difference between two
//! - [`feed`]: one task makes the frames, however many look, and none if nobody does
//! - [`history`]: second by second, the busiest pairs of server and tenant
//! - [`refusals`]: the calls that were refused in this second
//!
//! Nothing here is told of a call that goes well: everything is read from the tables that calls go
//! through anyway.

pub mod feed;
pub mod frame;
pub mod history;
mod layout;
mod refusals;
pub mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use self::feed::{Feed, Viewer};
use self::history::{History, Sample};
use self::refusals::Refusals;
use crate::events::Kinds;
use crate::gateway::Gateway;

/// How often the history is written.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// The trunk of one gateway. A cheap handle.
#[derive(Clone)]
pub struct Trunk {
    inner: Arc<Inner>,
}

struct Inner {
    gateway: Arc<Gateway>,
    feed: Feed,
    history: Mutex<History>,
    refusals: Arc<Refusals>,
}

impl Trunk {
    pub fn new(gateway: Arc<Gateway>) -> Self {
        let refusals: Arc<Refusals> = Arc::default();
        gateway.events().attach(Kinds::NOTABLE, refusals.clone());
        let (feed, history) = (Feed::default(), Mutex::default());
        Self { inner: Arc::new(Inner { gateway, feed, history, refusals }) }
    }

    /// Writes the history, for ever.
    pub async fn run(&self) {
        let mut ticks = interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let sample = Sample::take(self.inner.gateway.registry(), self.inner.refusals.take());
            self.inner.history.lock().push(sample);
        }
    }

    /// Begins to look at the trunk.
    pub fn watch(&self) -> Viewer {
        Viewer::new(self.clone())
    }

    /// Reads the history.
    pub fn read<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        read(&self.inner.history.lock())
    }
}
