//! Callers as executors are: each has one call at a time, and sends it again with the same key
//! until it has an outcome.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::LIMIT;

const PAUSE: Duration = Duration::from_millis(20);
/// One outcome in so many is asked for again.
const AGAIN: u64 = 8;

/// The outcome of one key.
pub struct Outcome {
    pub key: u64,
    pub began: Instant,
    pub ended: Instant,
    pub state: State,
    /// The number of times that the call was sent.
    pub sent: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Answered,
    Unknown,
    /// There was no outcome in time, or a wrong one.
    Wrong(String),
}

struct Caller {
    client: Client,
    addresses: Arc<[SocketAddr]>,
}

/// Makes so many calls, and returns their outcomes.
pub async fn run(addresses: &[SocketAddr], calls: u64, callers: usize) -> Vec<Outcome> {
    let (next, addresses) = (Arc::new(AtomicU64::new(0)), Arc::from(addresses));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (next, addresses) = (next.clone(), Arc::clone(&addresses));
        let client = Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
        let caller = Caller { client, addresses };
        tasks.spawn(async move {
            let mut outcomes = vec![];
            loop {
                let key = next.fetch_add(1, Ordering::Relaxed);
                if key >= calls {
                    return outcomes;
                }
                outcomes.push(caller.call(key).await);
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// An answer that is no reason to try again.
struct Final {
    status: StatusCode,
    replayed: bool,
    body: String,
}

impl Caller {
    async fn call(&self, key: u64) -> Outcome {
        let began = Instant::now();
        let mut sent = 0;
        let state = self.outcome(key, began, &mut sent).await;
        Outcome { key, began, ended: Instant::now(), state, sent }
    }

    async fn outcome(&self, key: u64, began: Instant, sent: &mut u32) -> State {
        let Some(first) = self.until_final(key, began, sent).await else {
            return State::Wrong("no outcome in time".to_owned());
        };
        let state = state_of(&first, key);
        if !key.is_multiple_of(AGAIN) {
            return state;
        }
        match self.until_final(key, Instant::now(), sent).await {
            Some(again) if again.replayed && again.status == first.status => {
                if again.body == first.body || state_of(&again, key) == state {
                    state
                } else {
                    State::Wrong(format!("another body: {} then {}", first.body, again.body))
                }
            }
            Some(Final { status, replayed, body }) => State::Wrong(format!(
                "{} then {status}, replayed: {replayed}, {} then {body}",
                first.status, first.body
            )),
            None => State::Wrong("no replay in time".to_owned()),
        }
    }

    async fn until_final(&self, key: u64, began: Instant, sent: &mut u32) -> Option<Final> {
        while began.elapsed() < LIMIT {
            *sent += 1;
            match self.send(key).await {
                Some(answer) => return Some(answer),
                None => sleep(PAUSE).await,
            }
        }
        None
    }

    /// Sends the call once. Returns `None` if it has to be sent again.
    async fn send(&self, key: u64) -> Option<Final> {
        let address = self.addresses[rand::rng().random_range(0..self.addresses.len())];
        let response = self
            .client
            .post(format!("http://{address}/v1/servers/count/tools/count"))
            .header("Idempotency-Key", format!("key-{key}"))
            .body(json!({"key": key}).to_string())
            .send()
            .await
            .ok()?;
        let replayed = response.headers().contains_key("trunkline-replayed");
        let status = response.status();
        let body = response.text().await.ok()?;
        if status == StatusCode::OK {
            return Some(Final { status, replayed, body });
        }
        let problem: Value = serde_json::from_str(&body).ok()?;
        let is_unknown = problem["executed"] == "unknown" && status != StatusCode::GATEWAY_TIMEOUT;
        let may_retry = problem["executed"] == "no" && problem["retryable"] == true;
        (is_unknown || !may_retry && status != StatusCode::GATEWAY_TIMEOUT).then_some(Final {
            status,
            replayed,
            body,
        })
    }
}

fn state_of(answer: &Final, key: u64) -> State {
    if answer.status == StatusCode::OK {
        let counted = format!("counted {key}\"");
        return match answer.body.contains(&counted) {
            true => State::Answered,
            false => State::Wrong(format!("another call's answer: {}", answer.body)),
        };
    }
    match serde_json::from_str::<Value>(&answer.body) {
        Ok(problem) if problem["executed"] == "unknown" => State::Unknown,
        _ => State::Wrong(format!("{}: {}", answer.status, answer.body)),
    }
}
