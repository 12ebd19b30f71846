//! The calls that were refused in this second, by server and tenant.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::common::ids::TenantName;
use crate::events::{CallOutcome, Event, Sink};

/// Pairs of server and tenant in one second; further ones are counted together.
const PAIRS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// By the tenant's own limits.
    pub own: u32,
    pub other: u32,
}

/// By server, as asked for, and tenant.
pub type RefusedByPair = HashMap<(Box<str>, TenantName), Refused>;

#[derive(Default)]
pub struct Refusals {
    now: Mutex<Second>,
}

#[derive(Default)]
pub struct Second {
    pub by_pair: RefusedByPair,
    /// Refusals of further pairs.
    pub rest: Refused,
}

impl Refusals {
    /// Returns the refusals since this was last called.
    pub fn take(&self) -> Second {
        std::mem::take(&mut self.now.lock())
    }
}

impl Refused {
    pub fn add(&mut self, other: Self) {
        self.own = self.own.saturating_add(other.own);
        self.other = self.other.saturating_add(other.other);
    }
}

impl Sink for Refusals {
    fn hear(&self, event: &Event) {
        let Event::CallEnded(call) = event else { return };
        if call.outcome != CallOutcome::Refused {
            return;
        }
        let (own, other) = (u32::from(call.is_own_limit), u32::from(!call.is_own_limit));
        let refused = Refused { own, other };
        let pair = (call.server.clone(), call.tenant.name().clone());
        let mut now = self.now.lock();
        let has_room = now.by_pair.len() < PAIRS_MAX;
        match now.by_pair.get_mut(&pair) {
            Some(known) => known.add(refused),
            None if has_room => _ = now.by_pair.insert(pair, refused),
            None => now.rest.add(refused),
        }
    }
}
