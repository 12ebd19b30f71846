//! Tenants that disturb others. A plain queue (FIFO) fails each of these tests.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use super::*;

const SLOTS: usize = 16;
const QUIET_TENANTS: usize = 99;
/// One estimate for all calls, since the gateway knows nothing of them beforehand.
const ESTIMATE: Duration = Duration::from_millis(5);
/// The longest that a call waits.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// A queue before a backend.
trait AnyQueue: Send + Sync + 'static {
    type Permit: Send;

    fn acquire(
        self: &Arc<Self>,
        tenant: &TenantId,
        weight: u32,
    ) -> impl Future<Output = Result<Self::Permit, QueueError>> + Send;
}

impl AnyQueue for Queue {
    type Permit = SlotPermit;

    async fn acquire(
        self: &Arc<Self>,
        tenant: &TenantId,
        weight: u32,
    ) -> Result<SlotPermit, QueueError> {
        self.enqueue(tenant, weight, 0).acquire(ESTIMATE, Instant::now() + WAIT_MAX).await
    }
}

/// First come, first served.
struct Fifo {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl AnyQueue for Fifo {
    type Permit = OwnedSemaphorePermit;

    async fn acquire(
        self: &Arc<Self>,
        _: &TenantId,
        _: u32,
    ) -> Result<OwnedSemaphorePermit, QueueError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(QueueError::Full);
        }
        let slot = timeout_at(Instant::now() + WAIT_MAX, self.slots.clone().acquire_owned()).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(slot.map_err(|_| QueueError::Expired)?.unwrap())
    }
}

fn fair() -> Arc<Queue> {
    Queue::new(SLOTS, QueueOptions::default())
}

fn fifo() -> Arc<Fifo> {
    Arc::new(Fifo { slots: Arc::new(Semaphore::new(SLOTS)), waiting: AtomicUsize::new(0) })
}

/// The outcome of the quiet tenants' calls.
#[derive(Default)]
struct Quiet {
    calls: usize,
    refused: usize,
    longest_wait: Duration,
    /// The most calls of the nuisance that began while one of these waited.
    overtaken_by: usize,
}

/// A tenant that is not quiet: how often its calls come, and what they take.
#[derive(Clone, Copy)]
struct Nuisance {
    every: Duration,
    takes: Duration,
}

/// Quiet tenants, each with a call now and then, and one nuisance, for a while.
async fn disturbed<D: AnyQueue>(door: Arc<D>, calls_per_s: u32, nuisance: Nuisance) -> Quiet {
    let (begun, quiet) = (Arc::new(Mutex::new(vec![])), Arc::new(Mutex::new(Quiet::default())));
    let mut tasks = JoinSet::new();
    let nuisances = tokio::spawn(disturb(door.clone(), nuisance, begun.clone()));
    for n in 0..QUIET_TENANTS {
        let (door, begun, quiet) = (door.clone(), begun.clone(), quiet.clone());
        tasks.spawn(async move {
            let tenant = tenant(&format!("quiet{n}"));
            let every = SECOND * QUIET_TENANTS as u32 / calls_per_s;
            let mut random = StdRng::seed_from_u64(n as u64);
            let end = Instant::now() + 30 * SECOND;
            loop {
                sleep(every.mul_f64(random.random_range(0.0..2.0))).await;
                if Instant::now() >= end {
                    return;
                }
                let came = Instant::now();
                let permit = door.acquire(&tenant, 1).await;
                let served = Instant::now();
                let is_between = |&&begun: &&Instant| came < begun && begun < served;
                let overtaken_by = begun.lock().iter().rev().take(5000).filter(is_between).count();
                {
                    let mut quiet = quiet.lock();
                    quiet.calls += 1;
                    quiet.refused += usize::from(permit.is_err());
                    quiet.longest_wait = quiet.longest_wait.max(came.elapsed());
                    quiet.overtaken_by = quiet.overtaken_by.max(overtaken_by);
                }
                sleep(10 * MS).await;
                drop(permit);
            }
        });
    }
    tasks.join_all().await;
    nuisances.abort();
    Arc::try_unwrap(quiet).ok().unwrap().into_inner()
}

/// Calls whether or not there are answers. A slot is held though nobody waits for the answer any
/// more.
async fn disturb<D: AnyQueue>(door: Arc<D>, nuisance: Nuisance, begun: Arc<Mutex<Vec<Instant>>>) {
    let (tenant, mut due) = (tenant("nuisance"), interval(nuisance.every));
    let mut calls = JoinSet::new();
    loop {
        due.tick().await;
        let (door, begun, tenant) = (door.clone(), begun.clone(), tenant.clone());
        calls.spawn(async move {
            let permit = door.acquire(&tenant, 1).await;
            if permit.is_ok() {
                begun.lock().push(Instant::now());
                sleep(nuisance.takes).await;
            }
        });
        while calls.try_join_next().is_some() {}
    }
}

/// A hundred times its part of the backend, which is 16 calls of 10 ms in a second.
const FLOOD: Nuisance =
    Nuisance { every: Duration::from_micros(625), takes: MS.saturating_mul(10) };
/// A flood of calls that are ten times slower.
const SLOW_FLOOD: Nuisance = Nuisance { takes: MS.saturating_mul(100), ..FLOOD };
/// All it can get, for as long as it can.
const HANG: Nuisance = Nuisance { every: MS, takes: SECOND.saturating_mul(30) };
/// Calls that are given up at once and never answered keep their slots until the end of grace.
const CANCELLED: Nuisance = Nuisance { every: MS, takes: SECOND.saturating_mul(5) };

/// Returns whether none is refused, and none waits for more than the call that is just being
/// served.
fn is_undisturbed(quiet: &Quiet, longest_wait: Duration) -> bool {
    let Quiet { calls, refused, longest_wait: longest, overtaken_by } = quiet;
    println!("{calls} calls, {refused} refused, waited {longest:?}, overtaken by {overtaken_by}");
    *calls > 500 && *refused == 0 && *longest <= longest_wait && *overtaken_by <= 1
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_not_noticed_by_the_quiet() {
    assert!(is_undisturbed(&disturbed(fair(), 400, FLOOD).await, 10 * MS));
    assert!(!is_undisturbed(&disturbed(fifo(), 400, FLOOD).await, 10 * MS));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_slow_calls_is_not_noticed_by_the_quiet() {
    assert!(is_undisturbed(&disturbed(fair(), 100, SLOW_FLOOD).await, 10 * MS));
    assert!(!is_undisturbed(&disturbed(fifo(), 100, SLOW_FLOOD).await, 10 * MS));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_hangs_every_slot_it_can_get_is_not_noticed_by_the_quiet() {
    for nuisance in [HANG, CANCELLED] {
        assert!(is_undisturbed(&disturbed(fair(), 20, nuisance).await, Duration::ZERO));
        assert!(!is_undisturbed(&disturbed(fifo(), 20, nuisance).await, Duration::ZERO));
    }
}

/// A tenant that always has more calls than it gets.
struct Backlogged {
    weight: u32,
    callers: usize,
    takes: Duration,
}

/// Returns the part of the backend that each tenant gets, in slots.
async fn parts<D: AnyQueue>(door: Arc<D>, tenants: &[Backlogged]) -> Vec<f64> {
    let time = 60 * SECOND;
    let used = Arc::new(Mutex::new(BTreeMap::<usize, f64>::new()));
    let mut callers = JoinSet::new();
    let end = Instant::now() + time;
    for (n, &Backlogged { weight, callers: count, takes }) in tenants.iter().enumerate() {
        for _ in 0..count {
            let (door, used) = (door.clone(), used.clone());
            callers.spawn(async move {
                let tenant = tenant(&format!("t{n}"));
                while Instant::now() < end {
                    let Ok(_permit) = door.acquire(&tenant, weight).await else { continue };
                    sleep(takes).await;
                    *used.lock().entry(n).or_default() += takes.as_secs_f64();
                }
            });
        }
    }
    callers.join_all().await;
    Arc::try_unwrap(used).unwrap().into_inner().values().map(|it| it / time.as_secs_f64()).collect()
}

/// Returns Jain's fairness index: 1 if all have the same, 1/n if one has all.
fn jain(parts: &[f64]) -> f64 {
    let (sum, squares) = parts.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (parts.len() as f64 * squares)
}

#[tokio::test(start_paused = true)]
async fn equal_tenants_get_equal_parts_whatever_their_calls_take() {
    // Some have more callers, some slower calls, of which nobody knows beforehand.
    let tenant = |n: usize| Backlogged {
        weight: 1,
        callers: 20 * (1 + n % 3),
        takes: MS * [5, 20, 80][n / 3],
    };
    let tenants: Vec<_> = (0..9).map(tenant).collect();
    let parts_of = |parts: Vec<f64>| {
        println!("{parts:.2?}: {}", jain(&parts));
        jain(&parts)
    };
    assert!(parts_of(parts(fair(), &tenants).await) >= 0.99);
    assert!(parts_of(parts(fifo(), &tenants).await) < 0.99);
}

/// Returns the largest relative deviation of a part from what the weights say.
fn deviation(tenants: &[Backlogged], parts: &[f64]) -> f64 {
    let (weights, sum) = (tenants.iter().map(|it| f64::from(it.weight)), parts.iter().sum::<f64>());
    let whole: f64 = weights.clone().sum();
    println!("{parts:.2?}");
    let deviations =
        weights.zip(parts).map(|(weight, part)| (part / sum * whole / weight - 1.0).abs());
    deviations.fold(0.0, f64::max)
}

#[tokio::test(start_paused = true)]
async fn weights_are_kept_within_two_percent() {
    let few = [1, 2, 5].map(|weight| Backlogged { weight, callers: 40, takes: 10 * MS });
    // As many tenants as slots: most hold one at most, and nevertheless the heavy have more.
    let many: Vec<_> = (0..20)
        .map(|n| Backlogged { weight: [1, 2, 5][n % 3], callers: 10, takes: 10 * MS })
        .collect();
    for tenants in [&few[..], &many] {
        let of_fair = deviation(tenants, &parts(fair(), tenants).await);
        assert!(of_fair < 0.02, "{of_fair}");
        assert!(deviation(tenants, &parts(fifo(), tenants).await) > 0.02);
    }
}
