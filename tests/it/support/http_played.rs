//! A played MCP server over HTTP. [`super::HttpServer`] tells it how to misbehave.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::Response;
use futures_util::stream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use super::http_answers::{error, event, reply, result_of, status, tool_result};
use super::http_server::Seen;

pub struct Played {
    pub is_modern: AtomicBool,
    /// The code of the error for what does not say its version, in the modern era.
    pub unversioned: AtomicI64,
    /// The status of every response, if it is always the same.
    pub refuses: Mutex<Option<u16>>,
    /// A request with this `Authorization` gets 401.
    pub revoked: Mutex<Option<String>>,
    /// Requests without one of certain tokens get 401, or another status.
    pub protection: Mutex<Option<Protection>>,
    /// The method that is left unanswered.
    pub ignores: Mutex<Option<&'static str>>,
    /// Told when all connections are to end.
    pub cut: Notify,
    pub seen: Mutex<Vec<Seen>>,
    pub sessions: Mutex<Vec<String>>,
    /// A session that is not known is a status, and no words.
    pub is_terse: AtomicBool,
    /// The target of `/redirect`, and its status.
    pub redirect: Mutex<(u16, String)>,
    /// Connections that there were.
    pub connections: AtomicUsize,
    /// Streams that are open.
    pub open: Arc<AtomicUsize>,
    /// The first events of the next GET streams, by their `Last-Event-ID`.
    pub resumed: Mutex<HashMap<String, String>>,
    /// The statuses with which the next streams for what is nobody's answer are refused.
    pub refused: Mutex<Vec<u16>>,
    pub notices: Mutex<Option<mpsc::Sender<String>>>,
    pub tools: Mutex<Value>,
}

/// How a server is protected by OAuth.
pub struct Protection {
    /// Values of `Authorization`, or beginnings of them that end in `*`.
    pub accepted: Vec<String>,
    pub status: u16,
    /// The value of `WWW-Authenticate`.
    pub challenge: String,
    /// The document by which clients find its authorization server.
    pub metadata: Value,
}

impl Played {
    pub fn new(is_modern: bool) -> Self {
        let names = ["echo", "answer", "hang", "status", "resume", "cut"];
        let tools = names.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
        Self {
            is_modern: AtomicBool::new(is_modern),
            unversioned: AtomicI64::new(-32602),
            refuses: Mutex::default(),
            revoked: Mutex::default(),
            protection: Mutex::default(),
            ignores: Mutex::default(),
            cut: Notify::new(),
            seen: Mutex::default(),
            sessions: Mutex::default(),
            is_terse: AtomicBool::new(false),
            redirect: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: Arc::default(),
            resumed: Mutex::default(),
            refused: Mutex::default(),
            notices: Mutex::default(),
            tools: Mutex::new(tools.into_iter().collect()),
        }
    }

    /// The status with which this is refused, whatever it asks.
    pub fn refusal_of(&self, seen: &Seen) -> Option<u16> {
        let revoked = self.revoked.lock();
        let is_revoked = revoked.as_ref().is_some_and(|it| seen.header("authorization") == it);
        is_revoked.then_some(401).or(*self.refuses.lock())
    }

    /// The answer of the protection, if it lets the request not pass.
    pub fn protect(&self, seen: &Seen) -> Option<Response<Body>> {
        let protection = self.protection.lock();
        let protection = protection.as_ref()?;
        if seen.path.starts_with("/.well-known/oauth-protected-resource") {
            let body = protection.metadata.to_string();
            let json = reply(200).header("content-type", "application/json");
            return Some(json.body(body.into()).unwrap());
        }
        let shown = seen.header("authorization");
        let is_accepted = protection.accepted.iter().any(|it| match it.strip_suffix('*') {
            Some(start) => shown.starts_with(start),
            None => it == shown,
        });
        (!is_accepted).then(|| {
            let challenge =
                reply(protection.status).header("www-authenticate", &protection.challenge);
            challenge.body(Body::empty()).unwrap()
        })
    }

    pub fn is_silent_about(&self, seen: &Seen) -> bool {
        self.ignores.lock().is_some_and(|method| seen.message["method"] == method)
    }

    /// Opens a stream and says nothing.
    pub fn hang(&self) -> Response<Body> {
        self.stream(mpsc::channel(1).1, true, String::new())
    }

    pub fn modern(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        let version = &seen.message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        match seen.message["method"].as_str().unwrap_or_default() {
            "initialize" => error(400, id, -32022, "no such version"),
            _ if version != "2026-07-28" => {
                error(400, id, self.unversioned.load(Ordering::Acquire), "which version?")
            }
            "server/discover" => {
                let capabilities = json!({"tools": {}});
                let caching = json!({"ttlMs": 0, "cacheScope": "public"});
                let mut result = json!({
                    "resultType": "complete",
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": capabilities,
                });
                result.as_object_mut().unwrap().extend(caching.as_object().unwrap().clone());
                result_of(id, result)
            }
            _ => self.answer(seen),
        }
    }

    pub fn legacy(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        match seen.message["method"].as_str().unwrap_or_default() {
            "initialize" => {
                let mut sessions = self.sessions.lock();
                let session = format!("session-{}", uuid::Uuid::new_v4());
                sessions.push(session.clone());
                let result = json!({
                    "protocolVersion": "2025-11-25",
                    "serverInfo": {"name": "played", "version": "1"},
                    "capabilities": {"tools": {"listChanged": true}},
                });
                let mut response = result_of(id, result);
                response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
                response
            }
            _ if seen.header("mcp-session-id").is_empty() => {
                error(400, &Value::Null, -32000, "Bad Request: no session")
            }
            _ if !self.sessions.lock().iter().any(|it| it == seen.header("mcp-session-id")) => {
                if self.is_terse.load(Ordering::Acquire) {
                    return status(404);
                }
                error(404, &Value::Null, -32001, "Session not found")
            }
            method if method.starts_with("notifications/") => status(202),
            _ => self.answer(seen),
        }
    }

    fn answer(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        match seen.message["method"].as_str().unwrap_or_default() {
            "tools/list" => {
                let tools = self.tools.lock().clone();
                if tools.is_null() {
                    return self.hang();
                }
                let caching =
                    json!({"resultType": "complete", "ttlMs": 600_000, "cacheScope": "public"});
                let mut result = json!({"tools": tools});
                result.as_object_mut().unwrap().extend(caching.as_object().unwrap().clone());
                result_of(id, result)
            }
            "tools/call" => self.call(seen),
            _ => error(404, id, -32601, "Method not found"),
        }
    }

    /// - `echo {text}`: answers at once, as JSON
    /// - `answer {events?, body, replace_id?}`: with any text; `$id` stands for the id of the
    ///   request
    /// - `hang`: opens a stream and says nothing more
    /// - `status {status, headers, body, endless?}`: if it is endless, the body never is complete
    /// - `resume`: ends the stream, and answers where it is asked for again
    /// - `cut`: breaks off
    fn call(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        let params = &seen.message["params"];
        let arguments = &params["arguments"];
        let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
        let filled = |name: &str| text(name).replace("$id", &id.to_string());
        match params["name"].as_str().unwrap() {
            "echo" => result_of(id, tool_result(&text("text"))),
            "answer" => {
                let kind = arguments["type"].as_str().unwrap_or("application/json");
                reply(200).header("content-type", kind).body(filled("body").into()).unwrap()
            }
            "hang" => self.hang(),
            "status" => {
                let mut response = reply(arguments["status"].as_u64().unwrap() as u16);
                for (name, value) in arguments["headers"].as_object().into_iter().flatten() {
                    response = response.header(name, value.as_str().unwrap());
                }
                let body = match arguments["endless"] == true {
                    true => self.hang().into_body(),
                    false => filled("body").into(),
                };
                response.body(body).unwrap()
            }
            "resume" => {
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": tool_result("resumed")});
                self.resumed.lock().insert("mark-1".to_owned(), event(&answer));
                let start = "id: mark-1\nretry: 60\ndata:\n\n".to_owned();
                self.stream(mpsc::channel(1).1, false, start)
            }
            "cut" => self.stream(mpsc::channel(1).1, false, ": nothing\n\n".to_owned()),
            other => {
                let tools = self.tools.lock();
                assert!(tools.as_array().unwrap().iter().any(|tool| tool["name"] == other));
                result_of(id, tool_result(other))
            }
        }
    }

    pub fn listen(&self, seen: &Seen) -> Response<Body> {
        if !self.sessions.lock().iter().any(|it| it == seen.header("mcp-session-id")) {
            return status(404);
        }
        if let Some(start) = self.resumed.lock().remove(seen.header("last-event-id")) {
            return self.stream(mpsc::channel(1).1, false, start);
        }
        if let Some(code) = self.refused.lock().pop() {
            return status(code);
        }
        let (sender, events) = mpsc::channel(16);
        *self.notices.lock() = Some(sender);
        self.stream(events, false, String::new())
    }

    /// Events until nobody is left to send any; `hangs`: for ever.
    fn stream(&self, events: mpsc::Receiver<String>, hangs: bool, start: String) -> Response<Body> {
        let open = Open::new(self.open.clone());
        let rest = stream::unfold((events, open), move |(mut events, open)| async move {
            match events.recv().await {
                Some(event) => Some((Ok::<_, Infallible>(Bytes::from(event)), (events, open))),
                None if hangs => std::future::pending().await,
                None => None,
            }
        });
        let start = stream::iter([Ok(Bytes::from(start))]);
        let body = Body::from_stream(futures_util::StreamExt::chain(start, rest));
        reply(200).header("content-type", "text/event-stream").body(body).unwrap()
    }
}

/// Counts a stream for as long as it is there.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
