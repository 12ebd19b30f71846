//! The checks before and after the calls of a round.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use trunkline::backend::RunState;
use trunkline::gateway::{CallError, Gateway};
use trunkline::tenants::limits::Cost;

use crate::child::complaints_of;
use crate::plan::Plan;
use crate::report::Tally;
use crate::{direct, processes, worker};

/// How long anything may take that needs no more than a moment.
const MOMENT: Duration = Duration::from_secs(10);

/// Every server starts.
pub async fn all_start(gateway: &Gateway, tally: &Tally) {
    for server in gateway.registry().shared() {
        if let Err(error) = server.ready(Instant::now() + MOMENT).await {
            tally.fault(format!("server {} does not start: {error:?}", server.id()));
        }
    }
}

/// No call is under way: those end by themselves whose callers have gone and cannot end them.
pub async fn calls_end(gateway: &Gateway, tally: &Tally) {
    let servers = || gateway.registry().shared();
    let in_flight = || servers().map(|server| server.metrics().in_flight.get()).sum::<i64>();
    if !comes_true(Instant::now() + MOMENT, || in_flight() == 0).await {
        tally.fault(format!("{} calls do not end", in_flight()));
    }
}

/// Every slot is free again: of each connection, and of each queue.
pub async fn nothing_in_flight(gateway: &Gateway, max_in_flight: u32, tally: &Tally) {
    let by = Instant::now() + MOMENT;
    for server in gateway.registry().shared() {
        let (id, metrics) = (server.id(), server.metrics());
        if metrics.in_flight.get() != 0 {
            tally.fault(format!("server {id} counts {} calls in flight", metrics.in_flight.get()));
        }
        let slots_taken = || match server.state() {
            RunState::Ready(ready) => ready.connection.in_flight_len(),
            _ => 0,
        };
        if !comes_true(by, || slots_taken() == 0).await {
            tally.fault(format!("server {id} has {} slots that nobody uses", slots_taken()));
        }
        let mut permits = vec![];
        // One for each of so many tenants: no tenant may have them all.
        for tenant in 0..max_in_flight as usize {
            let place = server.queue().enqueue(&worker::tenant_id(tenant), 1, 0);
            permits.push(place.acquire(Duration::ZERO, by).await);
        }
        let missing = permits.iter().filter(|permit| permit.is_err()).count();
        if missing != 0 {
            tally.fault(format!("the queue of server {id} has lost {missing} slots"));
        }
    }
}

/// After the stop: no process is left, and later calls are told why they fail.
pub async fn nothing_runs(gateway: &Gateway, dir: &Path, tally: &Tally) {
    // What a killed guard has left behind is killed at its end, but not waited for by the gateway.
    if !comes_true(Instant::now() + MOMENT, || processes::left_over(dir).is_empty()).await {
        tally.fault(format!("processes are left: {:?}", processes::left_over(dir)));
    }
    let mut plan = Plan::draw(0, 0, 0, 1);
    plan.timeout = MOMENT;
    let caller = worker::caller(0);
    let call = direct::call(gateway, &caller, &plan, plan.server);
    let admission = caller.tenant.admit(Cost::Call).await.expect("nothing is limited");
    match gateway.call(&caller, admission, &call).await {
        Err(CallError::ShuttingDown) => {}
        other => tally.fault(format!("a call after the stop got {other:?}")),
    }
}

/// No server has complained of the gateway.
pub fn no_complaints(logs: impl Iterator<Item = PathBuf>, tally: &Tally) {
    for log in logs {
        let complaints = std::fs::read_to_string(complaints_of(&log)).unwrap_or_default();
        if let Some(first) = complaints.lines().next() {
            let count = complaints.lines().count();
            tally.fault(format!("{count} complaints of a server, the first: {first}"));
        }
    }
}

/// The memory and descriptors of an idle process.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    tasks: usize,
    open_files: usize,
}

impl Idle {
    pub fn now() -> Self {
        Self {
            tasks: Handle::current().metrics().num_alive_tasks(),
            open_files: processes::open_files(),
        }
    }

    /// Waits until no more is held than `before`; gives what is held otherwise.
    pub async fn again(before: Self) -> Result<(), Self> {
        let fits = |now: Self| now.tasks <= before.tasks && now.open_files <= before.open_files;
        if comes_true(Instant::now() + MOMENT, || fits(Self::now())).await {
            Ok(())
        } else {
            Err(Self::now())
        }
    }
}

async fn comes_true(by: Instant, condition: impl Fn() -> bool) -> bool {
    while !condition() {
        if Instant::now() > by {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}
