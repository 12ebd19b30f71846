//! The gateway under test, in this process.

use std::net::SocketAddr;

use reqwest::{Client, RequestBuilder};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trunkline::app::App;

use super::metrics::Metrics;
use super::{Answer, Fake, RawHttp, Setup, TRUNKLINE, eventually, in_time, processes};

/// A gateway that is served on a port of its own. A test ends with [`Gateway::stop`].
pub struct Gateway {
    pub addr: SocketAddr,
    pub ops_addr: Option<SocketAddr>,
    pub client: Client,
    setup: Setup,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    stopped: bool,
}

impl Gateway {
    pub(super) async fn start(setup: Setup) -> Self {
        let app = App::build(setup.config(), TRUNKLINE.into()).await.unwrap();
        let (addr, ops_addr) = (app.addr().unwrap(), app.ops_addr());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(app.run(shutdown.clone().cancelled_owned()));
        let client = client();
        Self { addr, ops_addr, client, setup, shutdown, running, stopped: false }
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

    /// What a misbehaving server has seen.
    pub fn fake(&self, id: &str) -> Fake {
        Fake::new(self.setup.dir.path(), id)
    }

    /// Every process it has started, guards included.
    pub fn processes(&self) -> Vec<i32> {
        processes::with_environment(&self.setup.mark)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Tells it to stop, without waiting for that.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Stops it. Of the processes it has started none may be left, not even a dead one.
    pub async fn stop(mut self) {
        let started = self.processes();
        self.stopped = true;
        self.shutdown.cancel();
        in_time("shut down", &mut self.running).await.unwrap();
        let mut left = self.processes();
        left.extend(started.into_iter().filter(|pid| processes::exists(*pid)));
        assert!(left.is_empty(), "processes {left:?} are left");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        assert!(self.stopped || std::thread::panicking(), "the test must end with `stop`");
    }
}

/// A client that speaks to nobody but the gateway, whatever the environment says.
pub fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}
