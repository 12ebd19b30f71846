//! The rules of a call's record, without a store and without tasks.
//!
//! ```text
//!              ┌──────────── executed: no, or cancelled ───────────┐
//!              │                                                   ▼
//!  (new) ─▶ accepted ─▶ begun ──▶ ended                    forgotten, or ended
//!              │          │        ▲                        without its key
//!   its gateway is gone:  │        │ a late answer
//!   another claims it     └─▶ abandoned: unknown
//! ```
//!
//! The mark `begun` is durable before a server can see the call, and `ended` before anyone is
//! answered. So a retry that finds `begun` by a gateway that is gone knows one thing: the tool may
//! have run.

use super::outcome::Ran;
use crate::store::CallState;

/// The record of a call as a retry finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) state: CallState,
    /// Of an ended call.
    pub(super) executed: Ran,
    pub(super) has_expired: bool,
    /// Whether the gateway that has the call lives.
    pub(super) is_owner_alive: bool,
    pub(super) has_same_arguments: bool,
    /// Whether the tool and the operator allow a second execution.
    pub(super) is_repeatable: bool,
}

/// The right answer to a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Delete the record and run the call: nothing is known of an earlier one.
    RunAfresh,
    /// Delete the record and run the call once more, after the grace of its first attempt.
    Repeat,
    Mismatch,
    /// Give the outcome back.
    Replay,
    OutcomeUnknown,
    /// Note that nobody knows how the call ended, and look again.
    Abandon,
    /// Wait until it has ended.
    Wait,
}

pub(super) fn decide(found: Found) -> Decision {
    if found.has_expired {
        return match found.state {
            // Longer than its ttl on its way: it may still run.
            CallState::Begun if found.is_owner_alive => Decision::Wait,
            _ => Decision::RunAfresh,
        };
    }
    if !found.has_same_arguments {
        return Decision::Mismatch;
    }
    match found.state {
        CallState::Begun if !found.is_owner_alive => Decision::Abandon,
        // One whose gateway is gone is claimed by another.
        CallState::Accepted | CallState::Begun => Decision::Wait,
        CallState::Ended | CallState::Abandoned if found.is_unknown() && found.is_repeatable => {
            Decision::Repeat
        }
        CallState::Ended => Decision::Replay,
        CallState::Abandoned => Decision::OutcomeUnknown,
    }
}

impl Found {
    fn is_unknown(&self) -> bool {
        self.state == CallState::Abandoned || self.executed == Ran::Unknown
    }
}

/// The part of an ended call that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// The outcome, for each retry.
    Outcome,
    /// The outcome under the call's id; its key may be used again.
    WithoutKey,
    /// Nothing: the call did not run, and a retry runs it.
    Nothing,
}

/// Says what is kept of a call. Its caller has an id to ask by if it was answered asynchronously.
pub(super) fn keeping(executed: Ran, has_known_id: bool) -> Keeping {
    match executed {
        Ran::No if has_known_id => Keeping::WithoutKey,
        Ran::No => Keeping::Nothing,
        Ran::Yes | Ran::Unknown => Keeping::Outcome,
    }
}

#[cfg(test)]
#[path = "tests/record.rs"]
mod tests;
