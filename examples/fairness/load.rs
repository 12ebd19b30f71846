//! The behaviour of the tenants.

use std::iter::repeat_n;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memchr::memmem;
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until};

use crate::client::Client;
use crate::target::{Server, Tenant};

/// The time of a quiet tenant's call, in milliseconds.
pub const QUIET_MS: u64 = 10;
/// The calls of all quiet tenants together, in a second: they keep half a slot busy.
const QUIET_CALLS_PER_S: u32 = 50;
/// From the beginning until calls are counted.
pub const WARMUP: Duration = Duration::from_secs(3);
/// So much later do the others begin: the hostile tenant has taken all that it can get by then.
pub const HEAD_START: Duration = Duration::from_secs(1);

/// The outcome of the quiet tenants' calls.
#[derive(Default)]
pub struct Quiet {
    latencies: Vec<Duration>,
    pub refused: usize,
}

impl Quiet {
    pub fn calls(&self) -> usize {
        self.latencies.len()
    }

    /// The latency that this part of the calls does not exceed.
    pub fn quantile(&self, part: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let at = (sorted.len() as f64 * part) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Each of these tenants calls now and then, at random.
pub async fn quiet(tenants: &[Tenant], server: Server, time: Duration) -> Quiet {
    let every = Duration::from_secs(1) * tenants.len() as u32 / QUIET_CALLS_PER_S;
    let begin = Instant::now() + WARMUP;
    let mut tasks = JoinSet::new();
    for tenant in tenants.iter().cloned() {
        tasks.spawn(async move {
            let request = tenant.request(server, tool(server), QUIET_MS);
            let mut quiet = Quiet::default();
            let mut due = Instant::now();
            let Ok(mut client) = Client::connect(tenant.address).await else { return quiet };
            loop {
                due += every.mul_f64(rand::rng().random_range(0.0..2.0));
                if due > begin + time {
                    return quiet;
                }
                sleep_until(due).await;
                let answer = client.call(&request).await;
                let is_answered = answer.is_ok_and(|answer| {
                    answer.status == 200 && memmem::find(answer.body, words(server)).is_some()
                });
                quiet.refused += usize::from(!is_answered);
                if is_answered && due >= begin {
                    quiet.latencies.push(due.elapsed());
                }
            }
        });
    }
    tasks.join_all().await.into_iter().fold(Quiet::default(), |mut all, mut one| {
        all.latencies.append(&mut one.latencies);
        all.refused += one.refused;
        all
    })
}

/// The tool that takes as long as it is told.
fn tool(server: Server) -> &'static str {
    match server {
        Server::Std => "sleep",
        Server::Fake => "later",
    }
}

fn words(server: Server) -> &'static [u8] {
    match server {
        Server::Std => b"slept 10 ms",
        Server::Fake => b"later",
    }
}

/// So many connections of one tenant that call again as soon as they have their answer. What their
/// calls take differs by this part, to either side: those that all take the same time end together
/// for ever, and so does what they cost the machine that all of this shares. Ends when dropped.
pub fn flood(tenant: &Tenant, connections: usize, ms: u64, spread: f64) -> JoinSet<()> {
    let each = (0..connections).map(|index| {
        let part = index as f64 / connections as f64 * 2.0 - 1.0;
        (ms as f64 * (1.0 + spread * part)) as u64
    });
    call_again(tenant, each).0
}

/// So many connections of one tenant that together ask so often in a second, whatever the answers
/// are; one that is late makes up for it. Also counts the answers. Ends when dropped.
pub fn ask(
    tenant: &Tenant,
    connections: u32,
    per_s: u32,
    ms: u64,
) -> (JoinSet<()>, Arc<AtomicU64>) {
    let (mut tasks, answered) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    let every = Duration::from_secs(1) * connections / per_s;
    for index in 0..connections {
        let (tenant, answered) = (tenant.clone(), answered.clone());
        tasks.spawn(async move {
            let request = tenant.request(Server::Std, "sleep", ms);
            sleep(HEAD_START + every * index / connections).await;
            let mut due = interval(every);
            loop {
                let Ok(mut client) = Client::connect(tenant.address).await else { continue };
                loop {
                    due.tick().await;
                    if client.call(&request).await.is_err() {
                        break;
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    (tasks, answered)
}

/// A connection for each, which calls again as soon as it has its answer. Also counts the answers.
fn call_again(
    tenant: &Tenant,
    each_ms: impl Iterator<Item = u64>,
) -> (JoinSet<()>, Arc<AtomicU64>) {
    let (mut tasks, answered) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for ms in each_ms {
        let (tenant, answered) = (tenant.clone(), answered.clone());
        tasks.spawn(async move {
            let request = tenant.request(Server::Std, "sleep", ms);
            sleep(HEAD_START).await;
            loop {
                let Ok(mut client) = Client::connect(tenant.address).await else { continue };
                while let Ok(answer) = client.call(&request).await {
                    answered.fetch_add(u64::from(answer.status == 200), Ordering::Relaxed);
                }
            }
        });
    }
    (tasks, answered)
}

/// So many connections of one tenant that send a call which is never answered, hang up, and do it
/// again.
pub fn cancel(tenant: &Tenant, connections: usize) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let tenant = tenant.clone();
        tasks.spawn(async move {
            let request = tenant.request(Server::Fake, "hold", 0);
            sleep(HEAD_START).await;
            loop {
                let Ok(mut client) = Client::connect(tenant.address).await else { continue };
                let patience = Duration::from_millis(rand::rng().random_range(100..500));
                let _ = tokio::time::timeout(patience, client.call(&request)).await;
            }
        });
    }
    tasks
}

/// One of those that always want more: connections, and what each call takes.
#[derive(Clone, Copy)]
pub struct Backlog {
    pub connections: usize,
    pub ms: u64,
}

/// Returns the slots that each of these tenants gets of the server.
pub async fn backlogged(tenants: &[(Tenant, Backlog)], time: Duration) -> Vec<f64> {
    let floods: Vec<_> = tenants
        .iter()
        .map(|(tenant, Backlog { connections, ms })| {
            call_again(tenant, repeat_n(*ms, *connections))
        })
        .collect();
    sleep(WARMUP).await;
    let counts = || floods.iter().map(|(_, answered)| answered.load(Ordering::Relaxed));
    let before: Vec<_> = counts().collect();
    sleep(time).await;
    let calls = counts().zip(before).map(|(after, before)| after - before);
    let slots = |(calls, (_, backlog)): (u64, &(Tenant, Backlog))| {
        (calls * backlog.ms) as f64 / 1000.0 / time.as_secs_f64()
    };
    calls.zip(tenants).map(slots).collect()
}
