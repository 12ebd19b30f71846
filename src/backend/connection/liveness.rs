//! Signs of life of one connection, and overdue calls as evidence that its server is stuck: a stuck
//! server may still answer pings. Noted by the connection's tasks and read by
//! [`crate::backend::supervise::health`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::common::ids::TenantId;

/// Times are atomics, in milliseconds since `opened`: they are written often and read seldom.
#[derive(Debug)]
pub struct Liveness {
    opened: Instant,
    last_output: AtomicU64,
    /// Since when a write has waited for the server to read, plus one; 0 if no write waits.
    write_blocked: AtomicU64,
    /// The number of the last call of that write.
    write_number: AtomicU64,
    /// Notified when a call is overdue.
    pub(crate) overdue: Notify,
}

impl Default for Liveness {
    fn default() -> Self {
        let (last_output, write_blocked, write_number) = Default::default();
        let (opened, overdue) = (Instant::now(), Notify::new());
        Self { opened, last_output, write_blocked, write_number, overdue }
    }
}

impl Liveness {
    /// Notes output of the server.
    pub(crate) fn note_output(&self) {
        self.last_output.store(self.now(), Ordering::Relaxed);
    }

    /// Notes that a write begins, of calls up to this number.
    pub(crate) fn note_write_begun(&self, now: Instant, number: u64) {
        self.write_number.store(number, Ordering::Relaxed);
        self.write_blocked.store(self.millis(now) + 1, Ordering::Relaxed);
    }

    /// Notes that the server has read a part of the current write.
    pub(crate) fn note_write_progress(&self) {
        self.write_blocked.store(self.now() + 1, Ordering::Relaxed);
    }

    pub(crate) fn note_write_done(&self) {
        self.write_blocked.store(0, Ordering::Relaxed);
    }

    /// Returns how long the server has been silent.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last_output.load(Ordering::Relaxed)))
    }

    /// Returns since when the server has not read the current write, and the number of its last
    /// call.
    pub fn blocked_since(&self) -> Option<(Instant, u64)> {
        let since = self.write_blocked.load(Ordering::Relaxed).checked_sub(1)?;
        let number = self.write_number.load(Ordering::Relaxed);
        Some((self.opened + Duration::from_millis(since), number))
    }

    fn now(&self) -> u64 {
        self.millis(Instant::now())
    }

    fn millis(&self, time: Instant) -> u64 {
        time.duration_since(self.opened).as_millis() as u64
    }
}

/// The calls that a server has left unanswered past their deadline and grace period. A call whose
/// caller hung up is not among them: the server was told to cancel it and need not answer.
#[derive(Default)]
pub(super) struct OverdueCalls {
    /// When the server last showed that it works on calls: by an answer, or by progress on a call
    /// that somebody waits for.
    pub(super) last_sign: Option<Instant>,
    /// The overdue calls since then.
    overdue: Option<Overdue>,
}

struct Overdue {
    /// The number of the first overdue call.
    number: u64,
    /// The tenant of the overdue calls; `None` for several tenants.
    tenant: Option<TenantId>,
    evidence: StuckEvidence,
}

/// The time at which the writer claimed a call, and its number in the order of claims: many are
/// claimed at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(super) number: u64,
    pub(super) at: Instant,
}

/// Evidence that a server is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StuckEvidence {
    /// When the first overdue call was written.
    pub(crate) claimed: Instant,
    /// When it became overdue.
    pub(crate) noted: Instant,
    /// Whether a call that was written after `noted` is overdue, too. A server need not answer a
    /// call that was cancelled, so a single overdue call proves nothing.
    pub(crate) is_confirmed: bool,
}

impl OverdueCalls {
    /// Notes a sign that the server works on calls.
    pub(super) fn note_sign(&mut self) {
        self.last_sign = Some(Instant::now());
        self.overdue = None;
    }

    pub(super) fn add(&mut self, claim: Claim, tenant: &TenantId, now: Instant) {
        match &mut self.overdue {
            Some(overdue) => {
                overdue.tenant.take_if(|known| known != tenant);
                overdue.evidence.is_confirmed |= claim.at > overdue.evidence.noted;
            }
            None => {
                let evidence = StuckEvidence { claimed: claim.at, noted: now, is_confirmed: false };
                let tenant = Some(tenant.clone());
                self.overdue = Some(Overdue { number: claim.number, tenant, evidence });
            }
        }
    }

    /// Returns the evidence, unless one of the `live` calls excuses the server.
    pub(super) fn evidence<'a>(
        &self,
        mut live: impl Iterator<Item = (Claim, &'a TenantId)>,
        usual: Duration,
    ) -> Option<StuckEvidence> {
        let overdue = self.overdue.as_ref()?;
        let is_excused = live.any(|(claim, tenant)| overdue.is_excused_by(claim, tenant, usual));
        (!is_excused).then_some(overdue.evidence)
    }
}

impl Overdue {
    /// Returns whether a live call is a reason to give the server more time.
    ///
    /// The server may be working on a call that came before the overdue ones. And overdue calls of
    /// one tenant alone prove nothing against a server that may be working for another tenant. This
    /// second excuse ends after `2 * usual`: no stream of calls may protect a stuck server for
    /// ever.
    fn is_excused_by(&self, claim: Claim, tenant: &TenantId, usual: Duration) -> bool {
        let is_other_tenant = self.tenant.as_ref().is_some_and(|overdue| overdue != tenant);
        claim.number < self.number || (is_other_tenant && self.evidence.noted.elapsed() < 2 * usual)
    }
}
