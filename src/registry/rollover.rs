//! The rollover of one name from one server to the next: of a configured server, or of one
//! tenant's backend.
//!
//! ```text
//!             ┌─ beside ──────▶ Waiting ──as many ready as of the old one──┐ switch
//!  next one ──┤                    │ another is wanted                     ▼
//!             │                    ▼                                     Active
//!             │                 Draining ◀──replaced, removed, idle────────┤
//!             │                    │ last call ended, or out of time        ▲
//!             │                    ▼                                       │
//!             └─ exclusive ──── old one Gone? callers wait for its start ──┘
//! ```
//!
//! - *Beside*: the old one takes all calls until the next one is ready. A next one that does not
//!   start costs nothing.
//! - *Exclusive* (the two must not overlap) or *at once* (the old one must not be used any more, or
//!   the next one is lazy): the next one has the name at once, and the old one drains. The process
//!   of an exclusive one starts when every earlier one is gone.
//!
//! Listeners stay with the name. The stage itself is kept by the backend
//! (`backend/supervise/rollover.rs`).

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backend::changes::Changes;
use crate::backend::{Backend, CANCEL_GRACE};
use crate::common::ids::ServerId;
use crate::config;

/// Something that has a name for a time, and then drains.
pub(super) trait Replaceable: Clone {
    fn config(&self) -> &config::ServerConfig;
    fn is(&self, other: &Self) -> bool;
    fn is_draining(&self) -> bool;
    fn is_gone(&self) -> bool;
    fn drain(&self, within: Duration);
}

/// Everything that has one name, or had it and is not gone.
pub(super) struct Rollover<T> {
    pub(super) active: Option<T>,
    /// Becomes active when it is ready.
    pub(super) next: Option<T>,
    /// Replaced ones that are not gone.
    old: Vec<T>,
    changes: Weak<Changes>,
}

impl<T> Default for Rollover<T> {
    fn default() -> Self {
        Self { active: None, next: None, old: vec![], changes: Weak::new() }
    }
}

impl<T: Replaceable> Rollover<T> {
    /// Returns the one that takes calls, or did last.
    pub(super) fn current(&self) -> Option<&T> {
        let active = self.active.as_ref();
        active.filter(|it| !it.is_draining()).or(self.next.as_ref()).or(active)
    }

    /// Returns the one that becomes active when it is ready, while another takes the calls.
    pub(super) fn waiting(&self) -> Option<&T> {
        self.active.as_ref().filter(|it| !it.is_draining()).and(self.next.as_ref())
    }

    pub(super) fn newest(&self) -> Option<&T> {
        self.next.as_ref().or(self.active.as_ref())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.old.iter().chain(&self.active).chain(&self.next)
    }

    /// Takes the name from all but `kept`, which is active then. [`Self::drain_old`] must follow.
    pub(super) fn keep_only(&mut self, kept: Option<&T>) {
        let replaced = self.active.take().into_iter().chain(self.next.take());
        self.old.extend(replaced.filter(|it| kept.is_none_or(|kept| !kept.is(it))));
        self.active = kept.cloned();
    }

    /// Makes `next` the active one, unless another is wanted by now.
    /// [`Self::drain_old`] must follow.
    pub(super) fn switch(&mut self, next: &T) -> bool {
        let is_wanted = self.next.as_ref().is_some_and(|it| it.is(next));
        if is_wanted {
            self.keep_only(Some(next));
        }
        is_wanted
    }

    /// Drains all that have been replaced, by one that is configured as `next` if there is one.
    pub(super) fn drain_old(&self, next: Option<&config::ServerConfig>) {
        for old in self.old.iter().filter(|it| !it.is_draining()) {
            let is_waited_for = next.is_some_and(|next| next.exclusive);
            old.drain(drain_time(old.config(), is_waited_for));
        }
    }

    /// Returns those that must be gone before one that is configured as `next` starts.
    pub(super) fn blocking(&self, next: &config::ServerConfig) -> impl Iterator<Item = &T> {
        self.all().filter(|it| is_exclusive(it.config(), next))
    }

    /// Removes one that is gone. If it was to be the next one, the active one stays.
    pub(super) fn forget(&mut self, gone: &T) {
        self.old.retain(|it| !it.is(gone));
        self.active.take_if(|it| it.is(gone));
        self.next.take_if(|it| it.is(gone));
    }

    /// Returns the changes that listeners of this name hear, whatever has the name.
    pub(super) fn changes(&mut self, server: &ServerId) -> Arc<Changes> {
        self.changes.upgrade().unwrap_or_else(|| {
            let changes = Changes::new(server.clone());
            self.changes = Arc::downgrade(&changes);
            changes
        })
    }

    pub(super) fn tell_listeners(&self) {
        self.changes.upgrade().iter().for_each(|changes| changes.all_may_have_changed());
    }

    /// Forgets what is gone. Returns whether anything is left.
    pub(super) fn prune(&mut self) -> bool {
        self.old.retain(|it| !it.is_gone());
        self.all().next().is_some() || self.changes.strong_count() > 0
    }
}

/// Runs a backend from its start, which waits for `may_start`, to its end. Calls `switch` when it
/// can replace `old`.
pub(super) async fn run(
    backend: Arc<Backend>,
    may_start: impl Future<Output = ()>,
    old: Option<Arc<Backend>>,
    switch: impl FnOnce(),
    stop: CancellationToken,
) {
    tokio::select! {
        () = may_start => {}
        // Its process is never started, and its callers look its server up again.
        () = backend.draining() => {}
        () = stop.cancelled() => {}
    }
    let rollover = async {
        if let Some(old) = old
            && backend.can_replace(&old).await
        {
            switch();
        }
        pending().await
    };
    tokio::select! {
        () = backend.clone().supervise(stop) => {}
        () = rollover => {}
    }
}

/// Returns whether two configurations of a name must not run at the same time.
pub(super) fn is_exclusive(one: &config::ServerConfig, other: &config::ServerConfig) -> bool {
    one.exclusive || other.exclusive
}

/// Returns how long a drain may take. Where another waits for its end, calls get only the time that
/// they usually have.
pub(super) fn drain_time(config: &config::ServerConfig, is_waited_for: bool) -> Duration {
    let is_short = config.exclusive || is_waited_for;
    let calls = if is_short { config.usual_call() } else { config.longest_call() };
    calls + CANCEL_GRACE
}

#[cfg(test)]
#[path = "tests/rollover.rs"]
mod tests;
