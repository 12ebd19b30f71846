//! Whether a server answers calls at all. One that is wedged may still answer pings, or print.

use std::time::Duration;

use tokio::time::Instant;

use crate::common::ids::TenantId;

/// What is known of it, under the lock of the calls that wait.
#[derive(Debug, Default)]
pub(crate) struct Answering {
    /// When it last gave a sign that it works on calls: an answer, or progress that somebody hears.
    sign: Option<Instant>,
    /// What it has left unanswered since then.
    overdue: Option<Overdue>,
}

/// When a call was given to the server, and before which others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Many are written at the same time.
    pub(crate) number: u64,
    pub(crate) at: Instant,
}

/// Calls that are past their deadline and grace. That somebody hung up says nothing about the server: it is told, and then has
/// nothing to answer.
#[derive(Debug)]
pub(crate) struct Overdue {
    first: Written,
    /// Since when it is known.
    noted: Instant,
    /// Whose they are; `None` if several tenants'.
    tenant: Option<TenantId>,
    /// Whether a call that was written later than that is overdue, too.
    is_confirmed: bool,
}

/// What speaks against a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// When the first call was written that it has left unanswered.
    pub(crate) written: Instant,
    /// Since when that is known.
    pub(crate) noted: Instant,
    /// Whether it has left another one unanswered, from beginning to end, since then. A server that is told that a call is no
    /// longer wanted need not answer it, so one alone proves nothing.
    pub(crate) is_confirmed: bool,
}

impl Answering {
    /// It works on calls.
    pub(crate) fn note_sign(&mut self) {
        self.sign = Some(Instant::now());
        self.overdue = None;
    }

    /// When it last showed that it does.
    pub(crate) fn sign(&self) -> Option<Instant> {
        self.sign
    }

    /// A call is overdue.
    pub(crate) fn note_overdue(&mut self, written: Written, tenant: &TenantId, now: Instant) {
        let Some(overdue) = &mut self.overdue else {
            let tenant = Some(tenant.clone());
            let overdue = Overdue { first: written, noted: now, tenant, is_confirmed: false };
            self.overdue = Some(overdue);
            return;
        };
        overdue.tenant.take_if(|known| known != tenant);
        overdue.is_confirmed |= written.at > overdue.noted;
    }

    pub(crate) fn overdue(&self) -> Option<&Overdue> {
        self.overdue.as_ref()
    }
}

impl Overdue {
    /// Whether the server is to be left its time for a call that somebody waits for: it may be at one that came earlier, and one
    /// tenant's calls alone are no proof against those of another. `usual` is what calls usually may take. No patience, and no
    /// row of calls, is to keep a server in its place that hangs.
    pub(crate) fn is_excused_by(
        &self,
        written: Written,
        tenant: &TenantId,
        usual: Duration,
    ) -> bool {
        let is_another = self.tenant.as_ref().is_some_and(|mine| mine != tenant);
        written.number < self.first.number || (is_another && self.noted.elapsed() < 2 * usual)
    }

    pub(crate) fn doubt(&self) -> Doubt {
        let Self { first, noted, is_confirmed, .. } = *self;
        Doubt { written: first.at, noted, is_confirmed }
    }
}
