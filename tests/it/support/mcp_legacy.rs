//! A client of the legacy era, as plain as it gets.

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

use super::{Answer, Api, in_time};

/// The `Accept` header of every client of that era.
const ACCEPT: &str = "application/json, text/event-stream";

/// One session.
#[derive(Clone)]
pub struct Session {
    client: Client,
    url: String,
    /// Its `Mcp-Session-Id`.
    pub id: String,
}

/// A `POST` of any body, in no session.
pub fn post(gateway: &Api, path: &str, body: impl ToString) -> RequestBuilder {
    post_to(&gateway.client, &gateway.url(path), body)
}

fn post_to(client: &Client, url: &str, body: impl ToString) -> RequestBuilder {
    let request = client.post(url).header("content-type", "application/json");
    request.header("accept", ACCEPT).body(body.to_string())
}

pub fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

pub fn initialize(version: &str, capabilities: &Value) -> Value {
    let client = json!({"name": "test", "version": "1"});
    let params =
        json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": client});
    request(0, "initialize", params)
}

impl Session {
    /// Opens a session of a client that can do nothing.
    pub async fn open(gateway: &Api, path: &str) -> Self {
        Self::open_with(gateway, path, json!({})).await
    }

    /// Opens a session with capabilities.
    pub async fn open_with(gateway: &Api, path: &str, capabilities: Value) -> Self {
        let opened = Self::try_open(gateway, path, capabilities).await;
        assert_eq!(opened.status, 200, "{opened:?}");
        assert!(opened.json()["result"].is_object(), "{opened:?}");
        let session = Self::of(gateway, path, opened.header("mcp-session-id"));
        assert_eq!(session.notify("notifications/initialized", json!({})).await.status, 202);
        session
    }

    /// A session that is open already.
    pub fn of(gateway: &Api, path: &str, id: &str) -> Self {
        Self { client: gateway.client.clone(), url: gateway.url(path), id: id.to_owned() }
    }

    /// The answer to `initialize`, whatever it is.
    pub async fn try_open(gateway: &Api, path: &str, capabilities: Value) -> Answer {
        Answer::of(post(gateway, path, initialize("2025-11-25", &capabilities))).await
    }

    /// Returns the same session at another gateway or endpoint.
    pub fn at(&self, gateway: &Api, path: &str) -> Self {
        Self::of(gateway, path, &self.id)
    }

    /// Returns the same session with another next id.
    pub fn with_id(&self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self.clone() }
    }

    /// A message that is not sent yet.
    pub fn post(&self, message: impl ToString) -> RequestBuilder {
        let post = post_to(&self.client, &self.url, message);
        post.header("mcp-session-id", &self.id).header("mcp-protocol-version", "2025-11-25")
    }

    /// Sends a message.
    pub async fn send(&self, message: impl ToString) -> Answer {
        Answer::of(self.post(message)).await
    }

    pub async fn notify(&self, method: &str, params: Value) -> Answer {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await
    }

    pub async fn ask(&self, method: &str, params: Value) -> Answer {
        self.send(request(1, method, params)).await
    }

    /// Asks; there must be a result.
    pub async fn result(&self, method: &str, params: Value) -> Value {
        result_of(&self.ask(method, params).await)
    }

    /// Asks; there must be an error, as an answer.
    pub async fn error(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        messages(&answer).pop().unwrap()["error"].take()
    }

    /// A call that is not sent yet.
    pub fn call(&self, id: impl Into<Value>, tool: &str, arguments: Value) -> RequestBuilder {
        self.post(request(id, "tools/call", json!({"name": tool, "arguments": arguments})))
    }

    /// Returns the text of a tool's result.
    pub async fn tool_text(&self, tool: &str, arguments: Value) -> String {
        text_of(&result_of(&Answer::of(self.call(1, tool, arguments)).await))
    }

    /// `GET`: the stream for what is nobody's answer.
    pub async fn listen(&self) -> Stream {
        let stream = Stream::of(self.get()).await;
        assert_eq!(stream.status(), 200);
        stream
    }

    pub fn get(&self) -> RequestBuilder {
        let get = self.client.get(&self.url).header("accept", "text/event-stream");
        get.header("mcp-session-id", &self.id)
    }

    /// Ends it.
    pub async fn delete(&self) -> Answer {
        let delete = self.client.delete(&self.url).header("mcp-session-id", &self.id);
        Answer::of(delete).await
    }
}

/// The messages of an answer, be it JSON or a stream.
pub fn messages(answer: &Answer) -> Vec<Value> {
    if answer.header("content-type") == "application/json" {
        return vec![answer.json()];
    }
    answer.text().split("\n\n").filter_map(data_of).collect()
}

/// The result that an answer ends with.
pub fn result_of(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let last = messages(answer).pop().unwrap_or_else(|| panic!("nothing came: {answer:?}"));
    assert!(last["result"].is_object(), "{last}");
    last["result"].clone()
}

/// The text in the result of a tool.
pub fn text_of(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

fn data_of(event: &str) -> Option<Value> {
    let data = event.lines().find_map(|line| line.strip_prefix("data: "))?;
    Some(serde_json::from_str(data).unwrap())
}

/// A response that is read as it comes.
pub struct Stream {
    response: Response,
    read: String,
}

impl Stream {
    pub async fn of(request: RequestBuilder) -> Self {
        let response = in_time("a stream", request.send()).await.unwrap();
        Self { response, read: String::new() }
    }

    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The next message; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        in_time("more of the stream", self.read_on()).await
    }

    async fn read_on(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.read.split_once("\n\n") {
                let (data, rest) = (data_of(event), rest.to_owned());
                self.read = rest;
                if data.is_some() {
                    return data;
                }
            }
            // A reset is an end as well.
            self.read += std::str::from_utf8(&self.response.chunk().await.ok()??).unwrap();
        }
    }

    /// The next one, which must be there, without what is the same in all.
    pub async fn message(&mut self) -> Value {
        let mut message = self.next().await.expect("the stream has ended");
        message.as_object_mut().unwrap().remove("jsonrpc");
        message
    }

    /// The method of the next one.
    pub async fn method(&mut self) -> String {
        let message = self.message().await;
        message["method"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
    }
}
