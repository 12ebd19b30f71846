//! Whether a server that has not ended is alive.
//!
//! A busy server is not a dead one: it is asked for a sign of life only when it has nothing else to do, or when a call
//! was given up, its grace has ended, and nothing at all has been heard meanwhile. Many servers do one thing after the
//! other, and neither read nor answer meanwhile: while one may be at a call that came earlier and that somebody still
//! waits for, it is left alone. That ends with that call's own deadline, and for all of them after the time that calls usually
//! may take: no caller's patience is to keep a server that hangs in its place for others.
//!
//! Pings and prints are no answers to calls: one that gives such signs and leaves its calls unanswered is given a while
//! longer, and not for ever.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Ready;
use super::pending::Failure;

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A server that does not read its input for so long never will.
const BLOCKED_MAX: Duration = Duration::from_secs(10);
/// An idle server is asked for a sign of life when it has been silent for so long.
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long it may take to give one.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one may leave all calls unanswered after the grace of one has ended, whatever else it says.
const STUCK_MAX: Duration = Duration::from_secs(30);

/// Done when the server is not alive; says what is wrong, in words that callers may see. `usual` is what its operator gives
/// calls.
pub(super) async fn failing(ready: &Ready, grace: Duration, usual: Duration) -> String {
    let connection = &ready.connection;
    let pulse = connection.pulse();
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stuck_seen = None;
    loop {
        let is_overdue = tokio::select! {
            _ = look.tick() => false,
            () = pulse.overdue() => true,
        };
        let blocked = pulse.blocked_since().filter(|since| since.elapsed() >= BLOCKED_MAX);
        if blocked.is_some_and(|since| !connection.pending().is_busy_since_before(since, usual)) {
            return format!("it has not read its input for {} s", BLOCKED_MAX.as_secs());
        }
        match connection.pending().stuck_since(usual) {
            None => stuck_seen = None,
            Some(since) if stuck_seen.get_or_insert_with(Instant::now).elapsed() >= STUCK_MAX => {
                return format!("it has answered no call for {} s", since.elapsed().as_secs());
            }
            Some(_) => {}
        }
        let silent = pulse.silent_for();
        let is_idle = silent >= PING_AFTER && connection.pending().is_idle();
        let is_stuck = is_overdue
            && silent >= grace
            && !connection.pending().is_busy_since_before_overdue(usual);
        if (is_idle || is_stuck) && !answers(ready).await {
            return format!("it has not answered for {} s", pulse.silent_for().as_secs());
        }
    }
}

/// Whether the server answers anything at all.
async fn answers(ready: &Ready) -> bool {
    let deadline = Instant::now() + PING_TIMEOUT;
    let before = Instant::now();
    match ready.connection.request(deadline, |id| ready.dialect.ping(id)).await {
        // A status is an answer, and a server that cannot be connected to is replaced for that reason.
        Ok(_) | Err(Failure::Http { .. } | Failure::Unreached { .. }) => true,
        // Whatever else it says meanwhile is a sign of life too.
        Err(_) => ready.connection.pulse().silent_for() < before.elapsed(),
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
