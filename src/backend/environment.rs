//! The part of a gateway that all its backends share.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::CANCEL_GRACE;
use super::connection::request_ids::{IdSource, RequestIds};
use super::http::oauth::TokenSources;
use super::instance::pins::Pins;
use super::queue::{Queue, QueueOptions, RateGate, SlotPermit};
use super::supervise::restart_policy::Budget;
use crate::common::ids::{ServerId, TenantId};
use crate::common::offload::Offload;
use crate::common::policy::Rate;
use crate::events::Events;
use crate::telemetry::metrics::Metrics;
use crate::tenants::connections::Connections;

/// Bounds of how many instances of shared servers start at once, which is half the number of
/// processors. Most servers never work harder than at their start, and calls need processors, too.
const STARTS: RangeInclusive<usize> = 1..=8;
/// How many start at once of one server whose processes callers start. As of all slots, a quarter
/// is kept for tenants that start nothing.
const OWN_STARTS_MAX: usize = 4;
/// The usual time that a start keeps its permit.
const START_ESTIMATE: Duration = Duration::from_secs(1);
/// A start waits for its permit as long as its backend wants it.
const START_WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The pause of a start that found too many others waiting.
const START_RETRY: Duration = Duration::from_secs(1);

/// The rate and gate of each server, as long as a backend needs it.
type Gates = HashMap<ServerId, (Rate, Weak<RateGate>)>;

#[derive(Clone)]
pub struct Environment {
    /// This executable, which also runs as the guard of each server.
    pub own_program: PathBuf,
    /// The length of the longest accepted answer, in bytes.
    pub max_response: usize,
    /// See [`CANCEL_GRACE`].
    pub cancel_grace: Duration,
    /// Makes the source of ids for each run of an instance.
    pub ids: fn() -> Arc<dyn IdSource>,
    pub budget: Budget,
    /// Gives start permits to tenants in turns.
    starts: Arc<Queue>,
    /// The tenant of the processes that are started; the gateway's own if all tenants share them.
    pub tenant: TenantId,
    gates: Arc<Mutex<Gates>>,
    /// The servers that an operator has paused.
    paused: Arc<Mutex<HashSet<ServerId>>>,
    pub metrics: Metrics,
    pub pins: Arc<Pins>,
    pub events: Events,
    /// Access tokens for servers that want OAuth.
    pub(crate) tokens: Arc<TokenSources>,
    /// Access tokens of tenants that have connected themselves.
    pub connections: Option<Arc<Connections>>,
    /// Runs long computations.
    pub offload: Offload,
}

impl Environment {
    /// Creates one with nothing pinned.
    pub fn new(own_program: PathBuf, max_response: usize, metrics: Metrics) -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        let starts = (processors / 2).clamp(*STARTS.start(), *STARTS.end());
        let options = QueueOptions { is_shared: false, ..QueueOptions::default() };
        Self {
            own_program,
            max_response,
            cancel_grace: CANCEL_GRACE,
            ids: || Arc::new(RequestIds::default()),
            budget: Budget::default(),
            starts: Queue::new(starts, options),
            tenant: TenantId::gateway(),
            gates: Arc::default(),
            paused: Arc::default(),
            metrics,
            pins: Arc::default(),
            events: Events::default(),
            tokens: Arc::default(),
            connections: None,
            offload: Offload::new(),
        }
    }

    /// Notes whether an operator has paused a server, for its backends that are yet to come.
    pub fn set_paused(&self, server: &ServerId, is_paused: bool) {
        let mut paused = self.paused.lock();
        if is_paused {
            paused.insert(server.clone());
        } else {
            paused.remove(server);
        }
    }

    pub(super) fn is_paused(&self, server: &ServerId) -> bool {
        self.paused.lock().contains(server)
    }

    /// Returns the gate that keeps a server's rate. Backends of the same name and rate share it,
    /// those of several tenants as well as the two of a rollover.
    pub(super) fn gate(&self, server: &ServerId, rate: Option<Rate>) -> Option<Arc<RateGate>> {
        let rate = rate?;
        let mut gates = self.gates.lock();
        let known = gates.get(server).filter(|(known, _)| *known == rate);
        if let Some(gate) = known.and_then(|(_, gate)| gate.upgrade()) {
            return Some(gate);
        }
        let gate = Arc::new(RateGate::new(rate));
        gates.insert(server.clone(), (rate, Arc::downgrade(&gate)));
        Some(gate)
    }

    /// Waits for the permit to start a process.
    pub(super) async fn start_permit(&self) -> SlotPermit {
        loop {
            let deadline = Instant::now() + START_WAIT_MAX;
            let start = self.starts.enqueue(&self.tenant, 1, 0);
            match start.acquire(START_ESTIMATE, deadline).await {
                Ok(permit) => return permit,
                Err(_) => sleep(START_RETRY).await,
            }
        }
    }

    /// Returns a clone with start permits of its own: processes that callers start, however slow,
    /// hold up no other server.
    pub fn with_own_starts(self) -> Self {
        Self { starts: Queue::new(OWN_STARTS_MAX, QueueOptions::default()), ..self }
    }

    /// Returns a clone for the processes of one tenant.
    pub fn of_tenant(&self, tenant: &TenantId) -> Self {
        Self { tenant: tenant.clone(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;
    use tokio::task::JoinSet;

    use super::*;
    use crate::backend::testing::environment;

    fn all_permits(environment: &Environment) -> Vec<SlotPermit> {
        std::iter::from_fn(|| environment.start_permit().now_or_never()).collect()
    }

    #[tokio::test]
    async fn only_so_many_start_at_once_and_the_next_when_one_has() {
        let environment = environment();
        let mut permits = all_permits(&environment);
        let processors = available_parallelism().unwrap().get();
        assert_eq!(permits.len(), (processors / 2).clamp(1, 8));
        permits.pop();
        assert_eq!(all_permits(&environment).len(), 1);
    }

    #[tokio::test]
    async fn processes_that_callers_start_have_permits_of_their_own() {
        let environment = environment();
        let own = environment.clone().with_own_starts();
        let own = own.of_tenant(&TenantId::testing("a"));
        let (all, owns) = (all_permits(&environment), all_permits(&own));
        assert!(!all.is_empty());
        assert_eq!(owns.len(), 3);
    }

    /// Many waiting starts of a tenant delay those of another by one turn.
    #[tokio::test]
    async fn starts_take_turns_by_tenant_and_one_tenant_never_has_all() {
        let own = environment().with_own_starts();
        let [a, b, c] = ["a", "b", "c"].map(|it| own.of_tenant(&TenantId::testing(it)));
        let mut of_a = all_permits(&a);
        assert_eq!(of_a.len(), 3);
        let mut waiting = JoinSet::new();
        for _ in 0..40 {
            let a = a.clone();
            waiting.spawn(async move { (a.start_permit().await, pending::<()>().await) });
        }
        tokio::task::yield_now().await;
        let _of_b = b.start_permit().now_or_never().expect("the last one is kept");
        let next = tokio::spawn(async move { c.start_permit().await });
        tokio::task::yield_now().await;
        of_a.truncate(1);
        let _of_c = next.await.unwrap();
    }
}
