//! The gateway, in a process of its own.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;

const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Short, so that half-sent heads do not hold up the run.
const CONFIGURATION: &str = r#"
header_timeout = "1s"
[auth]
anonymous_tenant = "local"
[store]
url = "sqlite://fuzz.db"
[servers.std]
command = "trunkline"
args = ["std"]
timeout = "2s"
"#;

pub struct Gateway {
    pub address: SocketAddr,
    process: Child,
    dir: TempDir,
}

impl Gateway {
    /// Starts a gateway and waits until it is ready.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("trunkline.toml"), CONFIGURATION).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let log = File::create(dir.path().join("log")).unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["serve", "--listen", &address.to_string()])
            .current_dir(dir.path())
            .env("RUST_LOG", "error")
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let gateway = Self { address, process, dir };
        let end = Instant::now() + PATIENCE;
        while gateway.get("/readyz").await.is_none() {
            assert!(Instant::now() < end, "the gateway did not get ready: {}", gateway.log());
            sleep(POLL).await;
        }
        gateway
    }

    /// Ends the gateway. Returns what is wrong with it.
    pub async fn end(mut self) -> Vec<String> {
        let mut faults = vec![];
        if let Some(left) = self.wait_until_idle().await {
            faults.push(format!("calls are left in flight: {left}"));
        }
        if let Ok(Some(status)) = self.process.try_wait() {
            faults.push(format!("the gateway has ended by itself: {status}"));
        }
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.map(|pid| kill_process(pid, Signal::TERM));
        match timeout(PATIENCE, self.process.wait()).await {
            Ok(Ok(status)) if status.success() => {}
            other => faults.push(format!("the gateway did not end as it should: {other:?}")),
        }
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("panicked") || line.contains("ERROR"));
        faults.extend(lines.map(|line| format!("in the gateway's log: {line}")));
        faults
    }

    /// Waits until no call is in flight; returns the lines of metrics that say otherwise.
    async fn wait_until_idle(&self) -> Option<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let metrics = self.get("/metrics").await.unwrap_or_default();
            let gauge = "trunkline_calls_in_flight{";
            let busy = metrics.lines().filter(|it| it.starts_with(gauge) && !it.ends_with(" 0"));
            let busy: Vec<&str> = busy.collect();
            if !metrics.is_empty() && busy.is_empty() {
                return None;
            }
            if Instant::now() > end {
                return Some(busy.join("; "));
            }
            sleep(POLL).await;
        }
    }

    async fn get(&self, path: &str) -> Option<String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut client = Client::connect(self.address).await.ok()?;
        let answer = client.call(request.as_bytes()).await.ok()?;
        (answer.status == 200).then(|| String::from_utf8_lossy(answer.body).into_owned())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}
