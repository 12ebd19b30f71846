//! Decides whether a server that has not ended is alive.
//!
//! A busy server is not a dead one. It is pinged only when it is idle, or when a call is past its
//! deadline and grace and nothing has been heard meanwhile. Many servers run one call after
//! another, and neither read nor answer meanwhile. So a server is left alone
//!
//! - while it may be at an earlier call that somebody still waits for;
//! - while a tenant waits that has nothing to do with the overdue calls: a tenant in a hurry must
//!   not kill a server that works for others.
//!
//! This ends with the deadlines of those calls, and for all of them after the time that calls
//! usually have: no caller's patience keeps a server that hangs.
//!
//! Pings and output are no answers to calls. A server that gives such signs and answers no call
//! gets some more time, but not for ever. A single cancelled call proves nothing: the server need
//! not answer it.
//!
//! When calls with distant deadlines hold all slots, none of them becomes overdue, and calls that
//! wait for a slot are never written. So a server is **stalled** when calls wait for a slot and
//! nothing has ended for the time that calls usually have. A stalled server is reported; after
//! twice that time it is pinged, if it is silent. A server that answers is left alone, however long
//! its calls take.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{CHECK_EVERY, InstanceSupervisor};
use crate::backend::Ready;
use crate::backend::connection::RequestError;
use crate::backend::connection::liveness::StuckEvidence;

/// A server that has not read its input for this long never will.
const BLOCKED_MAX: Duration = Duration::from_secs(10);
/// An idle server is pinged when it has been silent for this long.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A server may answer no call for this long after the first was overdue, whatever else it says.
const STUCK_MAX: Duration = Duration::from_secs(30);

/// Describes what surrounds the connection that is judged.
pub(super) struct Surroundings<'a> {
    /// How long an abandoned call keeps its slot.
    pub(super) grace: Duration,
    /// The time that calls usually have.
    pub(super) usual: Duration,
    /// Returns whether calls wait because no slot is free for them.
    pub(super) is_starved: &'a (dyn Fn() -> bool + Send + Sync),
    /// Hears when the server begins and ceases to be stalled.
    pub(super) report_stalled: &'a (dyn Fn(bool) + Send + Sync),
}

impl InstanceSupervisor {
    /// Waits until a run is not alive; says why.
    pub(super) async fn failing(&self, ready: &Ready) -> String {
        let backend = &self.backend;
        let surroundings = Surroundings {
            grace: backend.environment.cancel_grace,
            usual: backend.config.usual_call(),
            is_starved: &|| backend.queue.is_starved(),
            report_stalled: &|is_stalled| backend.set_stalled(self.number, is_stalled),
        };
        failing(ready, &surroundings).await
    }
}

/// Waits until the server is not alive; says why, in words that callers may see.
async fn failing(ready: &Ready, surroundings: &Surroundings<'_>) -> String {
    let Surroundings { grace, usual, is_starved, report_stalled } = *surroundings;
    let connection = &ready.connection;
    let liveness = &connection.liveness;
    let mut check = interval(CHECK_EVERY);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The evidence that the last answered ping has cleared.
    let mut cleared = None;
    let mut stall = Stall { is_reported: false, pinged: None };
    report_stalled(false);
    loop {
        let is_overdue = tokio::select! {
            _ = check.tick() => false,
            () = liveness.overdue.notified() => true,
        };
        if is_blocked(ready, usual) {
            return format!("it has not read its input for {} s", BLOCKED_MAX.as_secs());
        }
        let evidence = connection.in_flight.stuck_evidence(usual);
        if let Some(StuckEvidence { claimed, noted, is_confirmed: true }) = evidence
            && noted.elapsed() >= STUCK_MAX
        {
            return format!("it has answered no call for {} s", claimed.elapsed().as_secs());
        }
        let stalled_for = is_starved().then(|| connection.in_flight.stalled_for()).flatten();
        let stalled_for = stalled_for.filter(|time| *time >= usual);
        if stall.is_reported != stalled_for.is_some() {
            stall.is_reported = stalled_for.is_some();
            report_stalled(stall.is_reported);
        }
        let silent = liveness.silent_for();
        if stalled_for.is_some_and(|time| time >= 2 * usual) && silent >= grace && stall.is_due() {
            if !answers_ping(ready).await {
                return format!("it has not answered for {} s", liveness.silent_for().as_secs());
            }
            stall.pinged = Some(Instant::now());
        }
        let is_idle = silent >= PING_AFTER && connection.in_flight.is_idle();
        let is_suspect = evidence.is_some_and(|it| is_overdue || cleared != Some(it.noted));
        if is_idle || (is_suspect && silent >= grace) {
            if !answers_ping(ready).await {
                return format!("it has not answered for {} s", liveness.silent_for().as_secs());
            }
            cleared = evidence.map(|evidence| evidence.noted);
        }
    }
}

/// The measures against a stalled server so far.
struct Stall {
    is_reported: bool,
    pinged: Option<Instant>,
}

impl Stall {
    /// Returns whether the last ping is long ago.
    fn is_due(&self) -> bool {
        self.pinged.is_none_or(|pinged| pinged.elapsed() >= PING_AFTER)
    }
}

/// Returns true if the server does not read its input and works on no earlier call. A server that
/// has just answered is about to read on.
fn is_blocked(ready: &Ready, usual: Duration) -> bool {
    let in_flight = &ready.connection.in_flight;
    let Some((since, number)) = ready.connection.liveness.blocked_since() else { return false };
    let since = in_flight.last_sign().map_or(since, |sign| sign.max(since));
    since.elapsed() >= BLOCKED_MAX && !in_flight.is_busy_before(number, usual)
}

/// Returns true if the server answers a ping, be it with an error.
async fn answers_ping(ready: &Ready) -> bool {
    let deadline = Instant::now() + PING_TIMEOUT;
    let before = Instant::now();
    match ready.connection.request(deadline, |id| ready.dialect.ping(id)).await {
        // A status is an answer, and a server that cannot be reached is replaced for that reason.
        Ok(_) | Err(RequestError::Http { .. } | RequestError::Unreached { .. }) => true,
        // Anything else that it says meanwhile is a sign of life, too.
        Err(_) => ready.connection.liveness.silent_for() < before.elapsed(),
    }
}

#[cfg(test)]
#[path = "tests/health.rs"]
mod tests;
