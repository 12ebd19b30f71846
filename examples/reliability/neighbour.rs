//! The quiet neighbour: a server that does nothing wrong, called a hundred times a second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use memchr::memmem;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::Client;
use crate::target::{Target, post};

/// Each calls in its turn: one that waits must not keep the next from being made.
const CONNECTIONS: u32 = 4;
const EVERY: Duration = Duration::from_millis(10);
/// A call that is not answered by then has failed.
const PATIENCE: Duration = Duration::from_secs(5);
const BODY: &str = "{\"ms\":5}";
const WORDS: &[u8] = b"slept 5 ms";

/// Callers in a thread of their own, so that nothing else this program does holds them up.
pub struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Calls>>,
}

#[derive(Default)]
pub struct Calls {
    latencies: Vec<Duration>,
    pub failed: usize,
}

impl Neighbour {
    /// Calls from now on, with the target's key if it has one.
    pub fn start(target: &Target) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (address, told) = (target.address, stop.clone());
        let request =
            post(address, "/v1/servers/std/tools/sleep", target.key.as_deref(), BODY).into();
        Self { stop, thread: std::thread::spawn(move || call(address, &request, &told)) }
    }

    /// Calls no more.
    pub async fn end(self) -> Result<Calls> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await?;
        joined.map_err(|_| anyhow!("the neighbour's callers panicked"))?
    }
}

impl Calls {
    pub fn count(&self) -> usize {
        self.latencies.len()
    }

    pub fn quantile_ms(&self, part: f64) -> f64 {
        quantile_ms(self.latencies.clone(), part)
    }
}

/// The time that this part of all does not exceed, in milliseconds.
pub fn quantile_ms(mut times: Vec<Duration>, part: f64) -> f64 {
    times.sort();
    let at = (times.len() as f64 * part) as usize;
    let time = times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default();
    time.as_secs_f64() * 1000.0
}

#[tokio::main(flavor = "current_thread")]
async fn call(address: SocketAddr, request: &Arc<str>, stop: &Arc<AtomicBool>) -> Result<Calls> {
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for n in 0..CONNECTIONS {
        let (request, stop) = (request.clone(), stop.clone());
        tasks.spawn(call_in_turn(address, request, begin + EVERY * n, stop));
    }
    let mut all = Calls::default();
    while let Some(one) = tasks.join_next().await {
        let mut one = one?;
        all.latencies.append(&mut one.latencies);
        all.failed += one.failed;
    }
    Ok(all)
}

async fn call_in_turn(
    address: SocketAddr,
    request: Arc<str>,
    mut due: Instant,
    stop: Arc<AtomicBool>,
) -> Calls {
    let mut client = None;
    let mut calls = Calls::default();
    while !stop.load(Ordering::Relaxed) {
        sleep_until(due).await;
        match timeout(PATIENCE, call_once(&mut client, address, request.as_bytes())).await {
            Ok(Ok(true)) => calls.latencies.push(due.elapsed()),
            Ok(Ok(false)) => calls.failed += 1,
            _ => {
                calls.failed += 1;
                client = None;
            }
        }
        due += EVERY * CONNECTIONS;
    }
    calls
}

/// Connects if necessary, and calls. Tells whether the answer is right.
async fn call_once(
    client: &mut Option<Client>,
    address: SocketAddr,
    request: &[u8],
) -> std::io::Result<bool> {
    let client = match client {
        Some(client) => client,
        none => none.insert(Client::connect(address).await?),
    };
    let answer = client.call(request).await?;
    Ok(answer.status == 200 && memmem::find(answer.body, WORDS).is_some())
}
