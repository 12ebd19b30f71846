//! The steps of a call so far, kept to explain its end.

use tokio::time::Instant;

use crate::events::Ahead;
use crate::events::explanation::{
    AttemptPeer, AttemptRecord, Explanation, InstanceChoice, QueueWait,
};
use crate::protocol::mcp::trace::SpanId;

/// Costs a call that ends well no allocation.
#[derive(Default)]
pub(super) struct CallSteps {
    /// The last wait for a slot, if there was none at once.
    pub(super) wait: Option<SlotWait>,
    /// The attempt under way, or the last one.
    pub(super) attempt: Option<AttemptStep>,
    /// The attempts before it.
    pub(super) earlier: Vec<AttemptStep>,
}

#[derive(Clone, Copy)]
pub(super) struct SlotWait {
    pub(super) since: Instant,
    pub(super) ahead: Ahead,
}

/// An attempt that was given to an instance.
#[derive(Clone, Copy)]
pub(super) struct AttemptStep {
    /// The number of the instance, from 0.
    pub(super) instance: usize,
    pub(super) choice: InstanceChoice,
    pub(super) dispatched: Instant,
    pub(super) peer: AttemptPeer,
    /// Its span, if the call is traced.
    pub(super) span: Option<SpanId>,
    /// The time and the code of its failure, if it failed.
    pub(super) failed: Option<(Instant, &'static str)>,
}

impl CallSteps {
    pub(super) fn attempts(&self) -> u32 {
        self.earlier.len() as u32 + u32::from(self.attempt.is_some())
    }

    /// Explains the steps of a call that has ended just now.
    pub(super) fn explain(&self, arrived: Instant) -> Explanation {
        let wait = self.wait.map(|wait| {
            let dispatched = self.attempt.map(|attempt| attempt.dispatched);
            let until = dispatched.filter(|at| *at > wait.since).unwrap_or_else(Instant::now);
            let (after, took) = (wait.since.duration_since(arrived), until - wait.since);
            QueueWait { after, took, ahead: wait.ahead }
        });
        let now = Instant::now();
        let attempts = self.earlier.iter().chain(&self.attempt).map(|attempt| {
            let AttemptStep { instance, choice, dispatched, peer, span, failed } = *attempt;
            let after = dispatched.duration_since(arrived);
            let took = failed.map_or(now, |(at, _)| at).duration_since(dispatched);
            let code = failed.map(|(_, code)| code);
            AttemptRecord { instance, choice, after, took, code, peer, span }
        });
        Explanation { wait, attempts: attempts.collect(), ..Explanation::default() }
    }

    pub(super) fn note_wait(&mut self, ahead: Ahead) {
        self.wait = Some(SlotWait { since: Instant::now(), ahead });
    }

    /// Notes that the attempt under way has failed. Without one, it was never given to an instance.
    pub(super) fn note_failure(&mut self, code: &'static str) {
        if let Some(attempt) = &mut self.attempt {
            attempt.failed.get_or_insert_with(|| (Instant::now(), code));
        }
    }

    pub(super) fn note_dispatch(&mut self, attempt: AttemptStep) {
        self.earlier.extend(self.attempt.replace(attempt));
    }
}
