//! Ends a storm in which something hangs, and says what.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::plan::Plan;
use crate::report::Counter;

/// Far longer than any call, start or stop may take.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(1);
const CALLS_SHOWN_MAX: usize = 10;

#[derive(Default)]
pub struct Watchdog {
    /// Grows with every call and every step of a round.
    steps: Counter,
    phase: Mutex<Phase>,
    /// Why a server last took no call. If all are down, calls do not hang: they are never made.
    unavailable: Mutex<Option<String>>,
    /// Runs that went well.
    pub passed: Counter,
    /// Runs that did not.
    pub failed: Counter,
}

#[derive(Clone, Default)]
struct Phase {
    what: &'static str,
    /// The workers, while they work.
    workers: Option<Arc<Workers>>,
}

/// The current call of each worker.
pub struct Workers {
    pub round_seed: u64,
    pub per_tenant: usize,
    /// The client id of the call under way; 0 between calls.
    pub client_ids: Vec<AtomicU64>,
}

impl Watchdog {
    /// A watchdog on a thread of its own: if all threads of the runtime hang, it still runs.
    pub fn start() -> Arc<Self> {
        let watchdog = Arc::new(Self::default());
        let watched = watchdog.clone();
        std::thread::spawn(move || watched.watch());
        watchdog
    }

    /// Something has happened.
    pub fn step(&self) {
        self.steps.add(1);
    }

    /// A server took no call.
    pub fn unavailable(&self, reason: String) {
        *self.unavailable.lock() = Some(reason);
    }

    /// Something else begins.
    pub fn enter(&self, what: &'static str, workers: Option<Arc<Workers>>) {
        *self.unavailable.lock() = None;
        *self.phase.lock() = Phase { what, workers };
        self.step();
    }

    /// The last line, however it ends.
    pub fn close(&self) {
        println!("{} passed, {} failed", self.passed.get(), self.failed.get());
    }

    fn watch(&self) {
        let (mut last, mut silent) = (0, Duration::ZERO);
        loop {
            // Not in the runtime, so this blocks nobody.
            std::thread::park_timeout(LOOK_EVERY);
            let steps = self.steps.get();
            silent = if steps == last { silent + LOOK_EVERY } else { Duration::ZERO };
            last = steps;
            if silent >= PATIENCE {
                self.report();
                self.failed.add(1);
                self.close();
                process::exit(1);
            }
        }
    }

    fn report(&self) {
        let phase = self.phase.lock().clone();
        println!("nothing has happened for {PATIENCE:?} while {}", phase.what);
        if let Some(reason) = &*self.unavailable.lock() {
            println!("  a server last took no call because {reason}");
        }
        let Some(workers) = phase.workers else { return };
        for plan in workers.calls_under_way().take(CALLS_SHOWN_MAX) {
            println!("  under way: {plan:?}");
        }
    }
}

impl Workers {
    fn calls_under_way(&self) -> impl Iterator<Item = Plan> {
        self.client_ids.iter().enumerate().filter_map(|(index, client_id)| {
            let (tenant, worker) = (index / self.per_tenant, index % self.per_tenant);
            match client_id.load(Ordering::Relaxed) {
                0 => None,
                client_id => Some(Plan::draw(self.round_seed, tenant, worker, client_id)),
            }
        })
    }
}
