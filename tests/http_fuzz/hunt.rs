//! The connections, and what is seen of each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::{http1, http2};

/// Connections at once.
const WORKERS: u64 = 16;
/// The gateway closes a connection within this time after its client did. Longer than the
/// deadline of a call.
pub const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// The well-behaved caller waits at most so long for an answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const CALL_EVERY: Duration = Duration::from_millis(20);
/// More faults than these say nothing new.
const FAULTS_MAX: usize = 20;

/// One step of a connection.
pub enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// Reads what has come so far.
    Read,
    /// Ends the connection at once, with a reset.
    Abort,
}

/// The bytes that came back, and how to find a status in them.
pub struct Script {
    pub steps: Vec<Step>,
    pub has_status_500: fn(&[u8]) -> bool,
}

type Faults = Arc<Mutex<Vec<String>>>;

/// Opens connections until the time is over. Returns how many, and what was wrong.
pub async fn run(
    address: SocketAddr,
    seed: u64,
    only: Option<u64>,
    time: Duration,
) -> (u64, Vec<String>) {
    let (next, faults) = (Arc::new(AtomicU64::new(0)), Faults::default());
    let end = Instant::now() + time;
    let mut tasks = JoinSet::new();
    tasks.spawn(call(address, end, faults.clone()));
    if let Some(number) = only {
        visit(address, seed, number, &faults).await;
        next.store(1, Ordering::Relaxed);
    } else {
        for _ in 0..WORKERS {
            let (next, faults) = (next.clone(), faults.clone());
            tasks.spawn(async move {
                while Instant::now() < end && faults.lock().len() < FAULTS_MAX {
                    visit(address, seed, next.fetch_add(1, Ordering::Relaxed), &faults).await;
                }
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let faults = std::mem::take(&mut *faults.lock());
    (next.load(Ordering::Relaxed), faults)
}

/// Makes calls as callers do.
async fn call(address: SocketAddr, end: Instant, faults: Faults) {
    let body = r#"{"text":"well-behaved"}"#;
    let request = format!(
        "POST /v1/servers/std/tools/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    let mut client = Client::connect(address).await.unwrap();
    while Instant::now() < end {
        let fault = match timeout(ANSWERED_WITHIN, client.call(request.as_bytes())).await {
            Ok(Ok(answer)) if answer.status == 200 => None,
            Ok(Ok(answer)) => Some(format!("has status {}", answer.status)),
            Ok(Err(error)) => Some(format!("failed: {error}")),
            Err(_) => Some("waits for long".to_owned()),
        };
        if let Some(fault) = fault {
            faults.lock().push(format!("a call of the well-behaved caller {fault}"));
            return;
        }
        sleep(CALL_EVERY).await;
    }
}

/// Plays the script of one connection.
async fn visit(address: SocketAddr, seed: u64, number: u64, faults: &Faults) {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
    let (name, script) = match rng.random_ratio(1, 2) {
        true => ("HTTP/1.1", http1::script(&mut rng)),
        false => ("HTTP/2", http2::script(&mut rng)),
    };
    let note = |fault: &str| {
        faults.lock().push(format!("connection {number} ({name}, seed {seed}) {fault}"));
    };
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return note("was not accepted");
    };
    let mut received = vec![];
    for step in script.steps {
        let going_on = match step {
            Step::Send(bytes) => stream.write_all(&bytes).await.is_ok(),
            Step::Pause(time) => {
                sleep(time).await;
                true
            }
            Step::Read => {
                let mut buffer = [0; 16 * 1024];
                // Nothing may have come: the script goes on all the same.
                let read = timeout(Duration::from_millis(5), stream.read(&mut buffer)).await;
                received.extend_from_slice(&buffer[..read.unwrap_or(Ok(0)).unwrap_or(0)]);
                true
            }
            Step::Abort => {
                let _ = stream.set_zero_linger();
                return;
            }
        };
        // The gateway may close a connection that breaks the rules.
        if !going_on {
            break;
        }
    }
    let _ = stream.shutdown().await;
    if timeout(CLOSED_WITHIN, stream.read_to_end(&mut received)).await.is_err() {
        note("was not closed");
    }
    if (script.has_status_500)(&received) {
        note("got a status 500");
    }
}

/// Returns one of the given things.
pub fn pick<T: Copy>(rng: &mut SmallRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

/// Returns random bytes, up to this many.
pub fn noise(rng: &mut SmallRng, len_max: usize) -> Vec<u8> {
    let len = rng.random_range(0..=len_max);
    (0..len).map(|_| rng.random()).collect()
}
