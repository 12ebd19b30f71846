//! One caller: a tenant's client that makes one call after the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use rand::RngExt;
use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use trunkline::protocol::mcp::ProtocolVersion;

use crate::mcp;
use crate::tally::{Outcome, Tally};

const SERVERS: [&str; 5] = ["steady", "changing", "killed0", "killed1", "killed2"];
/// One call in so many is given up by its caller, within this time.
const HANG_UP_ONE_IN: u32 = 20;
const HANG_UP_WITHIN_US: u64 = 3_000;
/// A session ends after so many calls on the average. An ended one is remembered until its token
/// expires, in some 75 bytes: with many more, this memory would be all that is seen.
const SESSION_CALLS: u32 = 2_000;
/// No call takes as long as this, whatever happens to its server.
const GIVE_UP_AFTER: Duration = Duration::from_secs(40);

/// The time from one call of a caller to its next, for all callers.
#[derive(Default)]
pub struct Pace(Mutex<Option<Duration>>);

const UNPACED: Duration = Duration::ZERO;
const STOPPED: Duration = Duration::MAX;

impl Pace {
    pub fn set(&self, pace: Duration) {
        *self.0.lock() = Some(pace);
    }

    pub fn stop(&self) {
        self.set(STOPPED);
    }

    fn get(&self) -> Duration {
        self.0.lock().unwrap_or(UNPACED)
    }
}

pub struct Caller {
    number: usize,
    base: String,
    key: String,
    client: Client,
    tally: Arc<Tally>,
    pace: Arc<Pace>,
    calls: u64,
    /// The legacy session for each server.
    sessions: [Option<String>; SERVERS.len()],
}

impl Caller {
    pub fn new(
        number: usize,
        address: SocketAddr,
        key: String,
        tally: Arc<Tally>,
        pace: Arc<Pace>,
    ) -> Result<Self> {
        let client = Client::builder().no_proxy().build()?;
        let (base, sessions) = (format!("http://{address}"), [const { None }; SERVERS.len()]);
        Ok(Self { number, base, key, client, tally, pace, calls: 0, sessions })
    }

    /// Calls until the pace is stopped, then ends its sessions.
    pub async fn run(mut self) {
        let mut next = Instant::now();
        loop {
            let pace = self.pace.get();
            if pace == STOPPED {
                break;
            }
            // A caller that is late does not catch up: that would be more than half of the load.
            next = Instant::now().max(next + pace);
            sleep_until(next).await;
            self.call_any().await;
        }
        for server in 0..SERVERS.len() {
            self.end_session(server).await;
        }
    }

    async fn call_any(&mut self) {
        self.calls += 1;
        let mark = format!("caller {} call {}", self.number, self.calls);
        let server = rand::rng().random_range(0..SERVERS.len());
        let way = rand::rng().random_range(0..3);
        let (what, request) = match way {
            0 => ("REST", self.rest(server, &mark)),
            1 => ("modern MCP", self.modern(server, &mark)),
            _ => match self.legacy(server, &mark).await {
                Some(request) => ("legacy MCP", request),
                None => return,
            },
        };
        let answer = async {
            let response = request.send().await?;
            let content_type = response.headers().get("content-type");
            let content_type = content_type.and_then(|it| it.to_str().ok()).unwrap_or("");
            let (status, content_type) = (response.status().as_u16(), content_type.to_owned());
            Ok::<_, reqwest::Error>((status, content_type, response.bytes().await?))
        };
        let outcome = if rand::rng().random_ratio(1, HANG_UP_ONE_IN) {
            let patience = rand::rng().random_range(0..HANG_UP_WITHIN_US);
            match timeout(Duration::from_micros(patience), answer).await {
                Ok(answered) => answered,
                Err(_) => return self.tally.note_hung_up(),
            }
        } else {
            match timeout(GIVE_UP_AFTER, answer).await {
                Ok(answered) => answered,
                Err(_) => return self.tally.note_surprise(format!("{what}: no answer")),
            }
        };
        let (status, content_type, body) = match outcome {
            Ok(answered) => answered,
            Err(error) => return self.tally.note_surprise(format!("{what}: {error:?}")),
        };
        if way == 2 && status == 404 {
            return self.tally.note_surprise(format!("{what}: the session is gone"));
        }
        let outcome = match way {
            0 => read_rest(&body),
            _ => mcp::read(&content_type, &body),
        };
        if let Outcome::Error(..) = outcome {
            // A server that is down refuses at once: asking on and on would be another test.
            sleep(Duration::from_millis(20)).await;
        }
        self.tally.note(what, may_be_killed(server), &mark, outcome);
    }

    fn rest(&self, server: usize, mark: &str) -> RequestBuilder {
        let url = format!("{}/v1/servers/{}/tools/echo", self.base, SERVERS[server]);
        let body = serde_json::json!({"text": mark}).to_string();
        self.client.post(url).bearer_auth(&self.key).body(body)
    }

    fn modern(&self, server: usize, mark: &str) -> RequestBuilder {
        let request = self.post(server, mcp::MODERN, &mcp::modern_call(mark));
        request.header("mcp-method", "tools/call").header("mcp-name", "echo")
    }

    /// Returns a call in a session, which is opened if there is none; `None` if it cannot be.
    async fn legacy(&mut self, server: usize, mark: &str) -> Option<RequestBuilder> {
        if rand::rng().random_ratio(1, SESSION_CALLS) {
            self.end_session(server).await;
        }
        if self.sessions[server].is_none() {
            let opened = self.post(server, mcp::LEGACY, &mcp::initialize()).send().await;
            let id = opened.ok().and_then(|response| {
                Some(response.headers().get("mcp-session-id")?.to_str().ok()?.to_owned())
            });
            // While a killed server is down nobody can be introduced to it.
            if id.is_none() && !may_be_killed(server) {
                self.tally.note_surprise("legacy MCP: no session was opened".to_owned());
            }
            self.sessions[server] = id;
        }
        let session = self.sessions[server].clone()?;
        let request = self.post(server, mcp::LEGACY, &mcp::legacy_call(mark));
        Some(request.header("mcp-session-id", session))
    }

    async fn end_session(&mut self, server: usize) {
        let Some(session) = self.sessions[server].take() else { return };
        let request = self.client.delete(format!("{}/mcp/{}", self.base, SERVERS[server]));
        let request = request.bearer_auth(&self.key).header("mcp-session-id", session);
        let ended = request.header("mcp-protocol-version", mcp::LEGACY.as_str()).send().await;
        if !ended.as_ref().is_ok_and(|response| response.status().is_success()) {
            self.tally.note_surprise(format!("legacy MCP: a session was not ended: {ended:?}"));
        }
    }

    fn post(&self, server: usize, version: ProtocolVersion, message: &Value) -> RequestBuilder {
        self.client
            .post(format!("{}/mcp/{}", self.base, SERVERS[server]))
            .bearer_auth(&self.key)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", version.as_str())
            .body(message.to_string())
    }
}

fn may_be_killed(server: usize) -> bool {
    SERVERS[server].starts_with("killed")
}

fn read_rest(body: &[u8]) -> Outcome {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    match answer["content"][0]["text"].as_str() {
        Some(text) => Outcome::Text(text.to_owned()),
        None => {
            let text = |name: &str| answer[name].as_str().unwrap_or("none").to_owned();
            Outcome::Error(text("code"), text("detail"))
        }
    }
}
