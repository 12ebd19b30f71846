//! The neighbour: callers in a closed loop, and what became of their calls.

use std::time::Duration;

use memchr::memmem;
use tokio::runtime::Builder;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::Client;
use crate::target::Tenant;

/// Calls that end before this time count if they are refused only: connections and caches are new.
const WARM_UP: Duration = Duration::from_millis(500);
/// The time after the end until a call hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause after a refusal, so that refusals do not become a flood.
const PAUSE: Duration = Duration::from_millis(50);
/// The part of an answer that is shown.
const SHOWN_BYTES: usize = 300;

/// Callers that each call again as soon as they have their answer.
#[derive(Clone, Copy)]
pub struct Neighbour {
    pub callers: usize,
    /// Writes one whole request. With `connection: close`, each has a connection of its own.
    pub request: fn(&Tenant) -> Vec<u8>,
    /// Words in every right answer.
    pub answer: &'static str,
}

#[derive(Default)]
pub struct Outcome {
    pub latencies: Vec<Duration>,
    pub refused: u64,
    pub hung: u64,
    pub first_refusal: Option<String>,
}

impl Neighbour {
    /// One echo after the other, of the bundled server.
    pub const ECHO: Self = Self {
        callers: 1,
        request: |tenant| tenant.call("std", "echo", "", r#"{"text":"here"}"#),
        answer: "here",
    };

    /// Calls for so long, and waits for the last answers. The calls have a thread of their own, so
    /// that their times have nothing of the driver's other work.
    pub async fn call(self, tenant: &Tenant, time: Duration) -> Outcome {
        let tenant = tenant.clone();
        let calls = spawn_blocking(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            Ok::<_, std::io::Error>(runtime.block_on(self.call_here(&tenant, time)))
        });
        calls.await.expect("nothing panics").expect("there are descriptors enough")
    }

    async fn call_here(self, tenant: &Tenant, time: Duration) -> Outcome {
        let (begin, end) = (Instant::now() + WARM_UP, Instant::now() + WARM_UP + time);
        let mut tasks = JoinSet::new();
        for _ in 0..self.callers {
            let (tenant, request, answer) = (tenant.clone(), (self.request)(tenant), self.answer);
            tasks.spawn(async move {
                let mut outcome = Outcome::default();
                let mut connection = None;
                while Instant::now() < end {
                    let since = Instant::now();
                    let call = call(&tenant, &mut connection, &request, answer);
                    match timeout_at(end + PATIENCE, call).await {
                        Ok(Ok(())) if Instant::now() >= begin => {
                            outcome.latencies.push(since.elapsed());
                        }
                        Ok(Ok(())) => {}
                        Ok(Err(refusal)) => {
                            outcome.refused += 1;
                            outcome.first_refusal.get_or_insert(refusal);
                            connection = None;
                            sleep(PAUSE).await;
                        }
                        Err(_) => outcome.hung += 1,
                    }
                }
                outcome
            });
        }
        tasks.join_all().await.into_iter().fold(Outcome::default(), Outcome::and)
    }
}

impl Outcome {
    fn and(mut self, mut other: Self) -> Self {
        self.latencies.append(&mut other.latencies);
        self.refused += other.refused;
        self.hung += other.hung;
        self.first_refusal = self.first_refusal.or(other.first_refusal);
        self
    }

    /// Returns the latency that this part of the calls does not exceed.
    pub fn quantile(&self, part: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let at = (sorted.len() as f64 * part) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Calls once, over a connection that is kept. Returns the answer if it is not the right one.
async fn call(
    tenant: &Tenant,
    connection: &mut Option<Client>,
    request: &[u8],
    right: &str,
) -> Result<(), String> {
    let is_kept = memmem::find(request, b"connection: close").is_none();
    let client = match connection {
        Some(client) if is_kept => client,
        _ => {
            let client = Client::connect(tenant.address).await;
            connection.insert(client.map_err(|error| format!("no connection: {error}"))?)
        }
    };
    let answer = client.call(request).await.map_err(|error| format!("no answer: {error}"))?;
    if answer.status == 200 && memmem::find(answer.body, right.as_bytes()).is_some() {
        return Ok(());
    }
    let shown = &answer.body[..answer.body.len().min(SHOWN_BYTES)];
    Err(format!("{} {}", answer.status, String::from_utf8_lossy(shown)))
}
