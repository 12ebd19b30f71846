//! The requests of a caller.

use std::net::SocketAddr;

use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Client, RequestBuilder};
use tokio::task::JoinHandle;

use super::metrics::Metrics;
use super::{Answer, RawHttp, eventually};

/// A gateway as it looks to those who have a key, or none.
#[derive(Clone)]
pub struct Api {
    pub addr: SocketAddr,
    pub client: Client,
    key: Option<String>,
    /// Speaks HTTP/2, with this window for each response.
    window: Option<u32>,
}

impl Api {
    pub fn new(addr: SocketAddr, key: Option<String>) -> Self {
        Self { addr, client: client_with(key.as_deref(), None), key, window: None }
    }

    /// The same caller over HTTP/2, with so much room for each response that is not read.
    pub fn with_window(&self, bytes: u32) -> Self {
        let (key, window) = (self.key.clone(), Some(bytes));
        Self { addr: self.addr, client: client_with(key.as_deref(), window), key, window }
    }

    /// Returns this gateway as another caller sees it.
    pub fn with_key(&self, key: &str) -> Self {
        Self::new(self.addr, Some(key.to_owned()))
    }

    /// A client of this caller with connections of its own.
    pub fn new_client(&self) -> Client {
        client_with(self.key.as_deref(), self.window)
    }

    /// Calls a tool.
    pub async fn call(&self, server: &str, tool: &str, arguments: impl ToString) -> Answer {
        Answer::of(self.post(server, tool, arguments)).await
    }

    /// Calls a tool that must answer within `ms`.
    pub async fn call_within_ms(
        &self,
        ms: impl ToString,
        server: &str,
        tool: &str,
        arguments: impl ToString,
    ) -> Answer {
        let request = self.post(server, tool, arguments);
        Answer::of(request.header("Trunkline-Timeout-Ms", ms.to_string())).await
    }

    /// A call that is not sent yet.
    pub fn post(&self, server: &str, tool: &str, arguments: impl ToString) -> RequestBuilder {
        let url = self.url(&format!("/v1/servers/{server}/tools/{tool}"));
        self.client.post(url).body(arguments.to_string())
    }

    /// Sends a call and leaves it to itself.
    pub fn spawn_call(
        &self,
        server: &str,
        tool: &str,
        arguments: impl ToString,
    ) -> JoinHandle<Answer> {
        tokio::spawn(Answer::of(self.post(server, tool, arguments)))
    }

    pub async fn servers(&self) -> Answer {
        self.get("/v1/servers").await
    }

    pub async fn server(&self, id: &str) -> Answer {
        self.get(&format!("/v1/servers/{id}")).await
    }

    pub async fn tools(&self, id: &str) -> Answer {
        self.get(&format!("/v1/servers/{id}/tools")).await
    }

    pub async fn readyz(&self) -> Answer {
        self.get("/readyz").await
    }

    pub async fn metrics(&self) -> Metrics {
        Metrics(self.get("/metrics").await.text())
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.client.get(self.url(path))).await
    }

    /// Waits until so many calls wait for a server or are being answered by it.
    pub async fn has_in_flight(&self, server: &str, calls: f64) {
        let series = format!("trunkline_calls_in_flight{{server=\"{server}\"}}");
        eventually("in flight", async || {
            (self.metrics().await.value(&series) == Some(calls)).then_some(())
        })
        .await;
    }

    /// Waits until every server has been tried.
    pub async fn ready(&self) {
        eventually("ready", async || (self.readyz().await.status == 200).then_some(())).await;
    }

    /// A connection on which anything can be sent.
    pub async fn connect(&self) -> RawHttp {
        RawHttp::connect(self.addr).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }
}

/// A client that speaks to nobody but the gateway, whatever the environment says.
pub fn client() -> Client {
    client_with(None, None)
}

fn client_with(key: Option<&str>, window: Option<u32>) -> Client {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        headers.insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    }
    let client = Client::builder().no_proxy().default_headers(headers);
    let client = match window {
        Some(bytes) => client.http2_prior_knowledge().http2_initial_stream_window_size(bytes),
        None => client,
    };
    client.build().unwrap()
}
