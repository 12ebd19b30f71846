//! A client of the modern era (2026-07-28), polite unless told otherwise.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use super::api::client;
use super::fake::Fake;
use super::setup::python;
use super::{Api, Setup, eventually, in_time};

pub const VERSION: &str = "2026-07-28";
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

const TALKING_SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/talking_server.py");

impl Setup {
    /// The server that has everything and talks a lot, of the given era; see `talking_server.py`.
    pub fn talker(self, id: &str, era: &str) -> Self {
        self.talker_with(id, era, &[], "")
    }

    /// Adds the talking server with options and settings.
    pub fn talker_with(self, id: &str, era: &str, options: &[&str], settings: &str) -> Self {
        let mut args = ["-I", "-S", "-X", "utf8", TALKING_SERVER].map(str::to_owned).to_vec();
        args.extend(Fake::new(self.dir.path(), id).args());
        args.push(format!("era={era}"));
        args.extend(options.iter().map(|option| (*option).to_owned()));
        self.server(id, python(), &args, settings)
    }
}

impl Api {
    /// A client at `/mcp`, or at `/mcp/{server}`.
    pub fn mcp(&self, path: &str) -> Mcp {
        Mcp { client: self.new_client(), url: self.url(path) }
    }
}

impl Fake {
    /// Waits until the gateway has asked a modern server for news, the last thing that it does
    /// unasked.
    pub async fn is_listened_to(&self) {
        eventually("listened to", async || self.received_of("subscriptions/listen").pop()).await;
    }
}

/// A client at one endpoint, with connections of its own.
#[derive(Clone)]
pub struct Mcp {
    client: Client,
    url: String,
}

impl Mcp {
    pub fn new(url: String) -> Self {
        Self { client: client(), url }
    }

    /// A request that is not sent yet. Headers and `_meta` are as they must be.
    pub fn ask(&self, method: &str, params: Value) -> Ask {
        let Value::Object(params) = params else { panic!("{params} are no params") };
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
            ("mcp-protocol-version", VERSION),
            ("mcp-method", method),
        ] {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let named = params.get("name").or(params.get("uri")).and_then(Value::as_str);
        if let Some(name) = named {
            headers.insert("mcp-name", HeaderValue::from_str(&encoded(name)).unwrap());
        }
        let meta = json!({PROTOCOL_VERSION: VERSION, CLIENT_CAPABILITIES: {}});
        let Value::Object(meta) = meta else { unreachable!() };
        let request = self.client.post(&self.url);
        Ask { request, id: "1".into(), method: method.into(), params, meta, headers, raw: None }
    }

    /// A call that is not sent yet.
    pub fn call(&self, tool: &str, arguments: Value) -> Ask {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The names of what a list has, all in one page.
    pub async fn names(&self, method: &str, member: &str, key: &str) -> Vec<String> {
        let list = self.ask(method, json!({})).send().await.result();
        assert!(list.get("nextCursor").is_none(), "{list}");
        let items = list[member].as_array().unwrap_or_else(|| panic!("{list}"));
        items.iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
    }

    pub async fn tool_names(&self) -> Vec<String> {
        self.names("tools/list", "tools", "name").await
    }

    /// A stream of changes, whose first message has been read: what it will tell.
    pub async fn listen(&self, id: &str, filter: Value) -> (Stream, Value) {
        let ask = self.ask("subscriptions/listen", json!({"notifications": filter})).id(id);
        let mut stream = ask.open().await;
        let first = stream.next().await;
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        (stream, first["params"].clone())
    }
}

/// A text as the value of a header.
pub fn encoded(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim() == text;
    if is_plain { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

/// A request in the making.
#[derive(Debug)]
pub struct Ask {
    request: RequestBuilder,
    id: String,
    method: String,
    params: Map<String, Value>,
    meta: Map<String, Value>,
    headers: HeaderMap,
    raw: Option<String>,
}

impl Ask {
    /// JSON, sent as it is.
    pub fn id(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    pub fn meta(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.meta.insert(name.to_owned(), value.into());
        self
    }

    pub fn without_meta(mut self, name: &str) -> Self {
        self.meta.remove(name).unwrap();
        self
    }

    pub fn param(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// In place of what it was.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        self.headers.insert(HeaderName::try_from(name).unwrap(), value);
        self
    }

    /// Beside what is there.
    pub fn another_header(mut self, name: &str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).unwrap();
        self.headers.append(HeaderName::try_from(name).unwrap(), value);
        self
    }

    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.remove(name).unwrap();
        self
    }

    /// The text of `params`, whatever it is; `$meta` in it stands for the members of `_meta`.
    pub fn raw_params(self, params: &str) -> Self {
        let meta = Value::from(self.meta.clone()).to_string();
        let params = params.replace("$meta", &meta[1..meta.len() - 1]);
        let (id, method) = (&self.id, json!(self.method));
        let raw = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#);
        Self { raw: Some(raw), ..self }
    }

    /// The whole body, whatever it is.
    pub fn body(self, body: &str) -> Self {
        Self { raw: Some(body.to_owned()), ..self }
    }

    /// Sends it and reads the whole answer.
    pub async fn send(self) -> Said {
        let response = self.response().await;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = in_time("the whole answer", response.text()).await.unwrap();
        let is_stream = headers.get("content-type").is_some_and(|it| it == "text/event-stream");
        let messages = if is_stream { events(&body) } else { vec![body.clone()] };
        Said { status, headers, is_stream, body, messages }
    }

    /// Starts the request without waiting for it.
    pub fn spawn(self) -> JoinHandle<Said> {
        tokio::spawn(self.send())
    }

    /// Sends it and reads the answer, a stream, message by message.
    pub async fn open(self) -> Stream {
        let response = self.response().await;
        let head = format!("{response:?}");
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{head}");
        Stream { response, bytes: vec![] }
    }

    pub async fn response(self) -> Response {
        in_time("answered", self.into_request().send()).await.unwrap()
    }

    fn into_request(self) -> RequestBuilder {
        let body = self.raw.unwrap_or_else(|| {
            let mut params = self.params;
            params.insert("_meta".to_owned(), self.meta.into());
            let (id, method, params) = (&self.id, json!(self.method), Value::from(params));
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#)
        });
        self.request.headers(self.headers).body(body)
    }
}

/// Returns all messages of the response.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub headers: HeaderMap,
    /// Whether it came as events.
    pub is_stream: bool,
    pub body: String,
    messages: Vec<String>,
}

impl Said {
    /// The answer itself, which must be the last message.
    pub fn answer(&self) -> Value {
        let last = self.messages.last().unwrap_or_else(|| panic!("no answer: {self:?}"));
        let answer: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{self:?}"));
        assert!(answer.get("result").or(answer.get("error")).is_some(), "{self:?}");
        answer
    }

    /// Returns the messages before the answer.
    pub fn before(&self) -> Vec<Value> {
        let before = &self.messages[..self.messages.len() - 1];
        before.iter().map(|message| serde_json::from_str(message).unwrap()).collect()
    }

    pub fn result(&self) -> Value {
        let answer = self.answer();
        assert_eq!((self.status, answer.get("error")), (200, None), "{self:?}");
        answer["result"].clone()
    }

    /// The text that a tool returned.
    pub fn tool_text(&self) -> String {
        let result = self.result();
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    }

    /// The status and the code of an error.
    pub fn refusal(&self) -> (u16, i64) {
        (self.status, self.error()["code"].as_i64().unwrap())
    }

    pub fn error(&self) -> Value {
        let answer = self.answer();
        assert_eq!((&answer["jsonrpc"], answer.get("result")), (&json!("2.0"), None), "{self:?}");
        answer["error"].clone()
    }

    /// Returns whether the answer has exactly this id, byte by byte.
    pub fn echoes(&self, id: &str) -> bool {
        let start = format!(r#"{{"jsonrpc":"2.0","id":{id},""#);
        self.messages.last().is_some_and(|answer| answer.starts_with(&start))
    }
}

/// Takes the link to its explanation out of the data of a call's error, and returns the rest.
pub fn without_link(data: &Value) -> Value {
    let mut data = data.clone();
    let link = data.as_object_mut().and_then(|data| data.remove("explain"));
    let link = link.unwrap_or_else(|| panic!("no link: {data}"));
    assert!(link.as_str().is_some_and(|it| it.starts_with("/v1/calls/")), "{link}");
    data
}

/// The messages of a whole stream.
fn events(body: &str) -> Vec<String> {
    let mut stream = body.as_bytes().to_vec();
    let messages = std::iter::from_fn(|| cut_event(&mut stream)).collect();
    assert!(stream.is_empty(), "the stream ends with half an event");
    messages
}

/// Takes the first whole event off `bytes`; comments are skipped.
fn cut_event(bytes: &mut Vec<u8>) -> Option<String> {
    loop {
        let end = memchr::memmem::find(bytes, b"\n\n")? + 2;
        let event = String::from_utf8(bytes.drain(..end).collect()).unwrap();
        if let Some(message) = event.strip_prefix("event: message\ndata: ") {
            return Some(message.trim_end().to_owned());
        }
        assert!(event.starts_with(':'), "{event:?} is no event");
    }
}

/// An answer that is still coming.
#[derive(Debug)]
pub struct Stream {
    response: Response,
    bytes: Vec<u8>,
}

impl Stream {
    /// The next message.
    pub async fn next(&mut self) -> Value {
        self.next_or_end().await.expect("the stream has ended")
    }

    /// The next message, or the end.
    pub async fn next_or_end(&mut self) -> Option<Value> {
        let text = self.next_text().await?;
        Some(serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
    }

    /// The text of the next message.
    pub async fn next_text(&mut self) -> Option<String> {
        in_time("more of the stream", self.wait_for_text()).await
    }

    async fn wait_for_text(&mut self) -> Option<String> {
        loop {
            if let Some(message) = cut_event(&mut self.bytes) {
                return Some(message);
            }
            let Some(chunk) = self.response.chunk().await.unwrap() else {
                assert!(self.bytes.is_empty(), "the stream ends with half an event");
                return None;
            };
            self.bytes.extend_from_slice(&chunk);
        }
    }

    /// All that is left, to the end.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut rest = vec![];
        while let Some(message) = self.next_or_end().await {
            rest.push(message);
        }
        rest
    }
}
