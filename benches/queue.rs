//! The cost of the queue for a call.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use trunkline::backend::queue::{Queue, QueueOptions, RateGate, SlotPermit};
use trunkline::common::ids::{TenantGeneration, TenantId, TenantName};
use trunkline::common::policy::Rate;

const TIMEOUT: Duration = Duration::from_secs(600);
const ESTIMATE: Duration = Duration::from_millis(5);

fn tenant(name: &str) -> TenantId {
    TenantName::parse(name).expect("a name").of(TenantGeneration::BUILT_IN)
}

async fn acquire(queue: &Arc<Queue>, tenant: &TenantId, deadline: Instant) -> SlotPermit {
    queue.enqueue(tenant, 1, 100).acquire(ESTIMATE, deadline).await.expect("a slot")
}

fn alone(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut group = criterion.benchmark_group("queue");
    group.bench_function("a semaphore, to compare", |bencher| {
        bencher.iter_custom(|calls| runtime.block_on(semaphore(calls)));
    });
    for tenants in [1, 100] {
        group.bench_function(format!("nobody waits, tenants: {tenants}"), |bencher| {
            bencher.iter_custom(|calls| runtime.block_on(one_by_one(tenants, calls, None)));
        });
    }
    // More than are made here.
    let rate = "1000000/s".parse().expect("a rate");
    group.bench_function("nobody waits, with a rate", |bencher| {
        bencher.iter_custom(|calls| runtime.block_on(one_by_one(1, calls, Some(rate))));
    });
    group.finish();
}

/// The simplest bounded queue, to compare: two counters and a semaphore.
async fn semaphore(calls: u64) -> Duration {
    let slots = Arc::new(Semaphore::new(64));
    let (waiting, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Instant::now();
    for _ in 0..calls {
        waiting.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(100, Ordering::Relaxed);
        let permit = timeout_at(begin + TIMEOUT, slots.clone().acquire_owned()).await;
        waiting.fetch_sub(1, Ordering::Relaxed);
        bytes.fetch_sub(100, Ordering::Relaxed);
        drop(black_box(permit));
    }
    begin.elapsed()
}

async fn one_by_one(tenants: usize, calls: u64, rate: Option<Rate>) -> Duration {
    let gate = rate.map(|rate| Arc::new(RateGate::new(rate)));
    let queue = Queue::new(64, QueueOptions { gate, ..QueueOptions::default() });
    let tenants: Vec<_> = (0..tenants).map(|n| tenant(&format!("t{n}"))).collect();
    let begin = Instant::now();
    for tenant in tenants.iter().cycle().take(calls as usize) {
        drop(black_box(acquire(&queue, tenant, begin + TIMEOUT).await));
    }
    begin.elapsed()
}

/// Measures one slot with so many waiting tenants: each takes it, releases it, and waits again.
fn contended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    for tenants in [2, 1000] {
        group.bench_function(format!("tenants that wait: {tenants}"), |bencher| {
            bencher.iter_custom(|calls| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(take_turns(tenants, calls))
            });
        });
    }
    group.finish();
}

async fn take_turns(tenants: usize, calls: u64) -> Duration {
    let queue = Queue::new(1, QueueOptions::default());
    let deadline = Instant::now() + TIMEOUT;
    let mut tasks = tokio::task::JoinSet::new();
    let begin = Instant::now();
    for n in 0..tenants {
        let queue = queue.clone();
        tasks.spawn(async move {
            let tenant = tenant(&format!("t{n}"));
            for _ in 0..calls.div_ceil(tenants as u64) {
                let permit = acquire(&queue, &tenant, deadline).await;
                tokio::task::yield_now().await;
                drop(permit);
            }
        });
    }
    tasks.join_all().await;
    begin.elapsed()
}

criterion_group!(benches, alone, contended);
criterion_main!(benches);
