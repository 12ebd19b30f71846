//! The events of a gateway: one typed event for each thing that happens, made where the state
//! changes.
//!
//! ```text
//! gateway, backend, app ── Events::tell ──┬──▶ sinks, in place: recent calls, call log
//!                                         └──▶ listeners, each through a bounded queue
//! ```
//!
//! - [`event`]: the events; [`call`]: the record of a call that has ended
//! - [`listener`]: a bounded queue of events; a slow reader loses some, and is told how many
//! - [`recent`]: failures, refusals and slow calls of the last while, by their ids
//! - [`explanation`]: how the gateway decided about a call
//! - [`call_log`]: one line of JSON for each call
//! - [`span`]: requests that are traced
//!
//! An event that nobody wants costs one relaxed load: it is made by a closure, only if its kind is
//! wanted. No lock is taken then, and none is shared by all calls otherwise.

pub mod call;
pub mod call_log;
pub mod event;
pub mod explanation;
pub mod listener;
pub mod recent;
pub mod span;
#[cfg(test)]
mod tests;

use std::ops::BitOr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use self::call::{CallOutcome, CallTags, EndedCall};
pub use self::event::{Ahead, Event, InstanceChange};
pub use self::listener::{Heard, Listener};
pub use self::span::{Sampler, TracedRequest};

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u32);

impl Kinds {
    /// A call arrived, waits, or was dispatched.
    pub const STEPS: Self = Self(1);
    /// A call ended well, and in good time.
    pub const ROUTINE: Self = Self(1 << 1);
    /// A call failed, was refused or cancelled, or was slow.
    pub const NOTABLE: Self = Self(1 << 2);
    /// An instance changed its state.
    pub const INSTANCES: Self = Self(1 << 3);
    /// The configuration changed, or a new one was rejected.
    pub const CONFIGURATION: Self = Self(1 << 4);
    /// A limit of a tenant refused something.
    pub const LIMITS: Self = Self(1 << 5);
    /// A request that is traced ended, in whatever way.
    pub const TRACED: Self = Self(1 << 6);
    /// The ends of all calls.
    pub const ENDS: Self = Self(Self::ROUTINE.0 | Self::NOTABLE.0);
    pub const ALL: Self = Self((1 << 7) - 1);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Kinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Hears events in place, on the task that tells them: must neither wait nor take long.
pub trait Sink: Send + Sync {
    fn hear(&self, event: &Event);
}

/// Tells events to those who want them. A cheap handle.
#[derive(Clone, Default)]
pub struct Events(Arc<Hub>);

#[derive(Default)]
struct Hub {
    /// The kinds that any sink wants.
    wanted: AtomicU32,
    sinks: ArcSwap<Vec<(Kinds, Arc<dyn Sink>)>>,
    /// Events that slow listeners have lost.
    lost: AtomicU64,
    /// Held while the sinks change.
    changing: Mutex<()>,
}

impl Events {
    /// Tells an event, if anybody wants its kind.
    #[inline]
    pub fn tell(&self, kind: Kinds, event: impl FnOnce() -> Event) {
        if self.wants(kind) {
            self.tell_now(kind, &event());
        }
    }

    #[inline]
    pub fn wants(&self, kind: Kinds) -> bool {
        self.0.wanted.load(Ordering::Relaxed) & kind.0 != 0
    }

    #[cold]
    fn tell_now(&self, kind: Kinds, event: &Event) {
        for (wanted, sink) in &**self.0.sinks.load() {
            if wanted.has(kind) {
                sink.hear(event);
            }
        }
    }

    /// Returns how many events slow listeners have lost, all together.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Has a sink hear events of these kinds from now on.
    pub fn attach(&self, kinds: Kinds, sink: Arc<dyn Sink>) {
        self.change(|sinks| sinks.push((kinds, sink)));
    }

    /// Changes the kinds that a sink hears; an empty set detaches it.
    fn detach(&self, sink: &Arc<dyn Sink>) {
        self.change(|sinks| sinks.retain(|(_, other)| !Arc::ptr_eq(other, sink)));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(Kinds, Arc<dyn Sink>)>)) {
        let _changing = self.0.changing.lock();
        let mut sinks = Vec::clone(&self.0.sinks.load());
        change(&mut sinks);
        let wanted = sinks.iter().fold(0, |all, (kinds, _)| all | kinds.0);
        self.0.sinks.store(Arc::new(sinks));
        self.0.wanted.store(wanted, Ordering::Relaxed);
    }
}
