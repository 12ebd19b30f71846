//! Whether a server that has not ended is alive.
//!
//! A busy server is not a dead one: it is asked for a sign of life only when it has nothing else to do, or when a call
//! is past its deadline, its grace has ended, and nothing at all has been heard meanwhile. Many servers do one thing after the
//! other, and neither read nor answer meanwhile: while one may be at a call that came earlier and that somebody still
//! waits for, it is left alone. So it is while somebody waits whose tenant has nothing to do with those late calls: a tenant that
//! is in a hurry is not to have a server killed that works for others. That ends with those calls' own deadlines, and for all of them
//! after the time that calls usually may take: no caller's patience is to keep a server that hangs in its place for others.
//!
//! Pings and prints are no answers to calls: one that gives such signs and leaves its calls unanswered is given a while
//! longer, and not for ever. A call alone that it was told to forget proves nothing: it need not answer that.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::backend::Ready;
use crate::backend::connection::RequestError;
use crate::backend::connection::overdue::StuckEvidence;

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A server that does not read its input for so long never will.
const BLOCKED_MAX: Duration = Duration::from_secs(10);
/// An idle server is asked for a sign of life when it has been silent for so long.
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long it may take to give one.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one may leave all calls unanswered after the first was overdue, whatever else it says.
const STUCK_MAX: Duration = Duration::from_secs(30);

/// Done when the server is not alive; says what is wrong, in words that callers may see. `usual` is what its operator gives
/// calls.
pub(crate) async fn failing(ready: &Ready, grace: Duration, usual: Duration) -> String {
    let connection = &ready.connection;
    let pulse = &connection.liveness;
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The doubt that it has answered.
    let mut answered = None;
    loop {
        let is_overdue = tokio::select! {
            _ = look.tick() => false,
            () = pulse.overdue() => true,
        };
        if is_blocked(ready, usual) {
            return format!("it has not read its input for {} s", BLOCKED_MAX.as_secs());
        }
        let doubt = connection.in_flight.stuck_evidence(usual);
        if let Some(StuckEvidence { written, noted, is_confirmed: true }) = doubt
            && noted.elapsed() >= STUCK_MAX
        {
            return format!("it has answered no call for {} s", written.elapsed().as_secs());
        }
        let silent = pulse.silent_for();
        let is_idle = silent >= PING_AFTER && connection.in_flight.is_idle();
        let is_doubtful = doubt.is_some_and(|doubt| is_overdue || answered != Some(doubt.noted));
        if is_idle || (is_doubtful && silent >= grace) {
            if !answers(ready).await {
                return format!("it has not answered for {} s", pulse.silent_for().as_secs());
            }
            answered = doubt.map(|doubt| doubt.noted);
        }
    }
}

/// Whether it does not read its input, and cannot be at a call that it has got. One that has just answered is about to read on.
fn is_blocked(ready: &Ready, usual: Duration) -> bool {
    let pending = &ready.connection.in_flight;
    let Some((since, number)) = ready.connection.liveness.blocked_since() else { return false };
    let since = pending.last_sign().map_or(since, |sign| sign.max(since));
    since.elapsed() >= BLOCKED_MAX && !pending.is_busy_before(number, usual)
}

/// Whether the server answers anything at all.
async fn answers(ready: &Ready) -> bool {
    let deadline = Instant::now() + PING_TIMEOUT;
    let before = Instant::now();
    match ready.connection.request(deadline, |id| ready.dialect.ping(id)).await {
        // A status is an answer, and a server that cannot be connected to is replaced for that reason.
        Ok(_) | Err(RequestError::Http { .. } | RequestError::Unreached { .. }) => true,
        // Whatever else it says meanwhile is a sign of life too.
        Err(_) => ready.connection.liveness.silent_for() < before.elapsed(),
    }
}

#[cfg(test)]
#[path = "tests/health.rs"]
mod tests;
