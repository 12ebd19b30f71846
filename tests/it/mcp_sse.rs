//! HTTP with server-sent events, the transport of 2024-11-05.

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use crate::support::mcp_legacy::{initialize, request, text_of};
use crate::support::{Answer, Api, Gateway, Setup, eventually, in_time, is_alive};

async fn start(setup: Setup) -> Gateway {
    setup.set("legacy_sse = true").start().await
}

/// A client of that time.
struct SseClient {
    api: Api,
    response: Response,
    read: String,
    messages: String,
}

impl SseClient {
    async fn open(api: &Api, path: &str) -> Self {
        let get = api.client.get(api.url(path)).header("accept", "text/event-stream");
        let response = in_time("the stream", get.send()).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{response:?}");
        let (api, messages) = (api.clone(), String::new());
        let mut client = Self { api, response, read: String::new(), messages };
        let (name, address) = client.event().await.unwrap();
        assert_eq!(name, "endpoint");
        client.messages = address;
        client
    }

    /// The next event: its name and data.
    async fn event(&mut self) -> Option<(String, String)> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let member = |name| event.lines().find_map(|line| line.strip_prefix(name));
                let found =
                    (member("event: ").map(str::to_owned), member("data: ").map(str::to_owned));
                self.read = rest.to_owned();
                if let (Some(name), Some(data)) = found {
                    return Some((name, data));
                }
                continue;
            }
            let chunk = in_time("more", self.response.chunk()).await.ok()??;
            self.read += std::str::from_utf8(&chunk).unwrap();
        }
    }

    async fn message(&mut self) -> Value {
        let (name, data) = self.event().await.expect("the stream has ended");
        assert_eq!(name, "message");
        serde_json::from_str(&data).unwrap()
    }

    fn post(&self, message: &Value) -> RequestBuilder {
        let post = self.api.client.post(self.api.url(&self.messages));
        post.header("content-type", "application/json").body(message.to_string())
    }

    async fn send(&self, message: Value) {
        assert_eq!(Answer::of(self.post(&message)).await.status, 202);
    }

    /// Opens its session.
    async fn greet(&mut self) -> Value {
        self.send(initialize("2024-11-05", &json!({}))).await;
        let answer = self.message().await;
        assert_eq!(answer["result"]["protocolVersion"], "2024-11-05", "{answer}");
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        answer["result"].clone()
    }

    async fn call(&self, id: u64, tool: &str, arguments: Value) {
        self.send(request(id, "tools/call", json!({"name": tool, "arguments": arguments}))).await;
    }
}

#[tokio::test]
async fn a_client_of_that_time_lists_and_calls_tools_of_one_server_and_of_all() {
    let gateway = start(Setup::new().fake("fake").std()).await;
    for (path, prefix) in
        [("/sse", "fake__"), ("/sse/fake", ""), ("/servers/fake/sse", ""), ("/sse/fake/", "")]
    {
        let mut client = SseClient::open(&gateway, path).await;
        client.greet().await;
        client.send(request(1, "tools/list", json!({}))).await;
        let tools = client.message().await["result"]["tools"].clone();
        let tool = format!("{prefix}progress");
        assert!(tools.as_array().unwrap().iter().any(|it| it["name"] == tool), "{path}: {tools}");
        let params = json!({"name": tool, "arguments": {"steps": [1, 2]},
            "_meta": {"progressToken": "t"}});
        client.send(request("x", "tools/call", params)).await;
        for step in [1, 2] {
            let message = client.message().await;
            assert_eq!(
                (&message["params"]["progress"], &message["params"]["progressToken"]),
                (&json!(step), &json!("t"))
            );
        }
        let answer = client.message().await;
        assert_eq!((&answer["id"], &*text_of(&answer["result"])), (&json!("x"), "done"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn answers_come_as_they_are_ready_and_a_call_can_be_cancelled() {
    let gateway = start(Setup::new().fake("fake")).await;
    let mut client = SseClient::open(&gateway, "/sse/fake").await;
    client.greet().await;
    client.call(1, "hold", json!({})).await;
    let fake = gateway.fake("fake");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    client.call(2, "pid", json!({})).await;
    assert_eq!(client.message().await["id"], 2);
    let params = json!({"requestId": 1});
    let method = "notifications/cancelled";
    client.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    eventually("cancelled", async || fake.received_of(method).pop()).await;
    client.call(3, "big", json!({"bytes": 3_000_000})).await;
    assert_eq!(text_of(&client.message().await["result"]).len(), 3_000_000);
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_of_its_own_is_asked_and_ends_with_the_stream() {
    let setup = Setup::new().fake_with("own", &[], "sharing = \"session\"");
    let gateway = start(setup).await;
    let mut client = SseClient::open(&gateway, "/sse/own").await;
    client.greet().await;
    let question = json!({"question": {"id": "q1", "method": "roots/list"}});
    client.call(1, "question", question).await;
    let asked = client.message().await;
    assert_eq!(asked["method"], "roots/list");
    client.send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})).await;
    assert!(text_of(&client.message().await["result"]).contains("roots"));
    let pid = gateway.fake("own").pids()[0];
    drop(client);
    eventually("gone", async || (!is_alive(pid)).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_stream_is_its_tenants_alone_and_nobodys_when_it_has_ended() {
    let setup = Setup::new().fake("fake").without_anonymous();
    let setup = setup.with_tenant("a", "servers = [\"*\"]").with_tenant("b", "servers = [\"*\"]");
    let gateway = start(setup).await;
    let refused = Answer::of(gateway.client.get(gateway.url("/sse"))).await;
    assert_eq!(refused.status, 401);
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let client = SseClient::open(&a, "/sse/fake").await;
    let ping = request(1, "ping", json!({}));
    let other = b.client.post(b.url(&client.messages)).body(ping.to_string());
    assert_eq!(Answer::of(other).await.status, 404);
    let nobody = gateway.client.post(gateway.url(&client.messages)).body(ping.to_string());
    assert_eq!(Answer::of(nobody).await.status, 401);
    let nowhere = Answer::of(a.client.post(a.url("/messages")).body(ping.to_string())).await;
    assert_eq!(nowhere.problem(), crate::support::refused(400, "invalid_request"));
    let messages = client.messages.clone();
    drop(client);
    eventually("ended", async || {
        let late = a.client.post(a.url(&messages)).body(ping.to_string());
        (Answer::of(late).await.status == 404).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn it_is_off_unless_the_operator_turns_it_on() {
    let gateway = Setup::new().std().start().await;
    for request in [
        gateway.client.get(gateway.url("/sse")),
        gateway.client.post(gateway.url("/messages?id=x")),
    ] {
        let answer = Answer::of(request).await;
        assert_eq!(answer.status, 404);
        assert!(answer.detail().contains("legacy_sse"), "{answer:?}");
    }
    gateway.stop().await;
}
