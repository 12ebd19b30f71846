//! Starts a gateway in a process of its own.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;

/// The slots of each server.
pub const SLOTS: usize = 16;
/// How long a gateway may take to get ready, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// The server that never answers a call that was cancelled.
const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");

/// A gateway that is ready.
pub struct Target {
    pub tenants: Vec<Tenant>,
    process: Child,
    input: ChildStdin,
    _dir: TempDir,
}

/// Who calls, and how.
#[derive(Clone)]
pub struct Tenant {
    pub address: SocketAddr,
}

/// Whom to call.
#[derive(Clone, Copy)]
pub enum Server {
    /// The bundled one.
    Std,
    /// The one that ignores cancels.
    Fake,
}

impl Target {
    /// One with so many tenants, the first of which have these weights, the others 1.
    pub async fn start(tenants: usize, weights: &[u32]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let names: Vec<_> = (0..tenants).map(|n| format!("t{n}")).collect();
        let file = dir.path().join("trunkline.toml");
        std::fs::write(&file, configuration(&dir, &names, weights)?)?;
        let mut process = Command::new(std::env::current_exe()?)
            .arg("gateway")
            .arg(&file)
            .args(&names)
            .current_dir(dir.path())
            .env("RUST_LOG", "warn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take().context("its input is a pipe")?;
        let mut lines =
            BufReader::new(process.stdout.take().context("its output is a pipe")?).lines();
        let mut tenants = vec![];
        for _ in &names {
            let line = timeout(PATIENCE, lines.next_line()).await??;
            let address = line.context("the gateway has ended")?.parse()?;
            tenants.push(Tenant { address });
        }
        let target = Self { tenants, process, input, _dir: dir };
        target.wait_until_ready().await?;
        Ok(target)
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let address = self.tenants[0].address;
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\n\r\n");
        let give_up = Instant::now() + PATIENCE;
        while Instant::now() < give_up {
            let mut client = Client::connect(address).await?;
            if client.call(request.as_bytes()).await?.status == 200 {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("the gateway did not get ready");
    }

    /// Ends it.
    pub async fn stop(mut self) {
        drop(self.input);
        if timeout(PATIENCE, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }
}

impl Tenant {
    /// A whole request for a call that takes so long.
    pub fn request(&self, server: Server, tool: &str, ms: u64) -> Vec<u8> {
        let server = match server {
            Server::Std => "std",
            Server::Fake => "fake",
        };
        let (address, body) = (self.address, format!("{{\"ms\":{ms}}}"));
        format!(
            "POST /v1/servers/{server}/tools/{tool} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

fn configuration(dir: &TempDir, names: &[String], weights: &[u32]) -> Result<String> {
    let log = format!("log={}", dir.path().join("fake.log").display());
    let mut text = format!(
        r#"listen = "127.0.0.1:0"
[auth]
anonymous_tenant = "t0"
[servers.std]
command = "trunkline"
args = ["std", "--max-concurrent", "64"]
max_in_flight = {SLOTS}
timeout = "60s"
[servers.fake]
command = "python3"
args = ["-I", "-S", "-X", "utf8", {FAKE:?}, {log:?}]
max_in_flight = {SLOTS}
timeout = "60s"
"#
    );
    for (name, weight) in names.iter().zip(weights) {
        write!(text, "[tenants.{name}]\nservers = [\"*\"]\nweight = {weight}\n")?;
    }
    Ok(text)
}
