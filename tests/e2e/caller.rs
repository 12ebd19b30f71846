//! Callers: over REST, and MCP clients of both eras, as plain as they can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::answer::{Answer, Expected};
use crate::calls::{Call, Outcome, Tally};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
/// For what is no call.
const PATIENCE: Duration = Duration::from_secs(15);

/// The ways to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Rest,
    Modern,
    Legacy,
}

impl Front {
    pub const ALL: [Self; 3] = [Self::Rest, Self::Modern, Self::Legacy];
}

/// One that calls, by one way, at one address, with one key.
#[derive(Clone)]
pub struct Caller {
    http: Client,
    tally: Arc<Tally>,
    base: String,
    key: Option<String>,
    front: Front,
    /// Of MCP: `/mcp`, or `/mcp/{server}`.
    path: String,
    session: Option<String>,
    /// Requests are numbered from 1, as everybody's are.
    ids: Arc<AtomicU64>,
}

impl Caller {
    /// A caller over REST, or a modern MCP client at `/mcp`.
    pub fn new(http: &Client, tally: &Arc<Tally>, base: &str, key: &str, front: Front) -> Self {
        Self {
            http: http.clone(),
            tally: tally.clone(),
            base: base.to_owned(),
            key: Some(key.to_owned()),
            front,
            path: "/mcp".to_owned(),
            session: None,
            ids: Arc::default(),
        }
    }

    /// Returns this caller without its key.
    pub fn without_key(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    /// Returns this caller, session included, at another address.
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.to_owned(), ..self.clone() }
    }

    /// A legacy client opens a session.
    pub async fn open(self, path: &str, capabilities: Value) -> Result<Self> {
        let caller = Self { front: Front::Legacy, path: path.to_owned(), session: None, ..self };
        let client = json!({"name": "e2e", "version": "1"});
        let params =
            json!({"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": client});
        let response = caller.send(&caller.message("initialize", params)).await?;
        let session = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        let session = session.map(str::to_owned);
        let answer = Answer::read(response).await?;
        ensure!(session.is_some(), "no session at {path}: {answer:?}");
        let caller = Self { session, ..caller };
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let noted = caller.post(&notice).await?;
        ensure!(noted.status == 202, "the session was not noted: {noted:?}");
        Ok(caller)
    }

    /// Calls, and looks whether the answer is its own.
    pub async fn call(&self, call: &Call) -> Outcome {
        let outcome = self.outcome_of(call).await;
        self.tally.count(&outcome);
        outcome
    }

    async fn outcome_of(&self, call: &Call) -> Outcome {
        let (id, request) = match self.front {
            Front::Rest => {
                let path = format!("/v1/servers/{}/tools/{}", call.server.name(), call.tool);
                (None, self.request(Method::POST, &path).body(call.arguments.to_string()))
            }
            Front::Modern | Front::Legacy => {
                let message = self.tool_call(call);
                (Some(message["id"].clone()), self.message_request(&message))
            }
        };
        let millis = call.within.map(|within| within.as_millis().to_string());
        let request = match millis {
            Some(millis) => request.header("trunkline-timeout-ms", millis),
            None => request,
        };
        match timeout(call.patience(), exchange(request)).await {
            Err(_) => Outcome::Cut(format!("nothing in {:?}", call.patience())),
            Ok(Err(outcome)) => outcome,
            Ok(Ok(answer)) => answer.judge(&Expected { id, text: &call.expected }),
        }
    }

    /// The message of a call, with an id of its own.
    pub fn tool_call(&self, call: &Call) -> Value {
        let name = match self.path.as_str() {
            "/mcp" => format!("{}__{}", call.server.name(), call.tool),
            _ => call.tool.to_owned(),
        };
        self.message("tools/call", json!({"name": name, "arguments": call.arguments}))
    }

    /// A request as MCP writes it.
    pub fn message(&self, method: &str, mut params: Value) -> Value {
        if self.front == Front::Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// Sends a message of MCP; the response as it comes.
    pub async fn send(&self, message: &Value) -> Result<Response> {
        let response = timeout(PATIENCE, self.message_request(message).send()).await;
        Ok(response.context("no response in time")??)
    }

    /// Sends a message of MCP; the whole answer.
    pub async fn post(&self, message: &Value) -> Result<Answer> {
        timeout(PATIENCE, Answer::read(self.send(message).await?)).await.context("no end of it")?
    }

    /// `GET` of a path of the REST API.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        let answer = async { Answer::read(self.request(Method::GET, path).send().await?).await };
        timeout(PATIENCE, answer).await.context("no answer in time")?
    }

    /// Ends the session.
    pub async fn delete(&self) -> Result<Answer> {
        let answer =
            async { Answer::read(self.request(Method::DELETE, &self.path).send().await?).await };
        timeout(PATIENCE, answer).await.context("no answer in time")?
    }

    fn message_request(&self, message: &Value) -> RequestBuilder {
        let request = self.request(Method::POST, &self.path);
        let request = request.header("accept", "application/json, text/event-stream");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let request = match self.front {
            Front::Modern => request
                .header("mcp-protocol-version", MODERN)
                .header("mcp-method", text(&message["method"]))
                .header("mcp-name", text(&message["params"]["name"])),
            _ => request.header("mcp-protocol-version", LEGACY),
        };
        request.body(message.to_string())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        let request = request.header("content-type", "application/json");
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        match &self.session {
            Some(session) => request.header("mcp-session-id", session),
            None => request,
        }
    }
}

/// An answer, or the way in which there was none.
async fn exchange(request: RequestBuilder) -> Result<Answer, Outcome> {
    let response = request.send().await.map_err(|error| match is_closed(&error) {
        true => Outcome::Closed,
        false => Outcome::Cut(format!("{:#}", Error::from(error))),
    })?;
    Answer::read(response).await.map_err(|error| Outcome::Cut(format!("{error:#}")))
}

/// Returns whether the other side has closed the connection before it said anything.
fn is_closed(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return error.is_incomplete_message();
        }
        cause = error.source();
    }
    false
}
