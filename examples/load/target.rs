//! The measured program: a server in a process of its own, on this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::Url;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;
use tokio::net::{TcpListener, lookup_host};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::options::Options;
use crate::usage::{self, Memory};

/// How long a server may take to answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// From ready to idle: what the start has set in motion comes to rest.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a server may take to end before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Floor,
    /// The gateway, called over REST.
    Rest,
    /// The gateway, called by batches over REST.
    Batch,
    /// The gateway, called over MCP.
    Mcp,
    /// The gateway, called over REST with an API key, by a tenant with limits of every kind.
    Limited,
    /// The gateway, called over REST with an `Idempotency-Key` of each call's own.
    Keyed,
}

/// The configuration for callers without an API key. One tenant gets three quarters of the slots at
/// most: with these, 64 calls at once do not wait for slots.
const WITHOUT_LIMITS: &str = r#"
[auth]
anonymous_tenant = "local"
[servers.std]
command = "trunkline"
args = ["std", "--max-concurrent", "64"]
max_in_flight = 128
"#;

/// The configuration for [`Kind::Limited`]: limits that are checked with every call, and never
/// reached.
const WITH_LIMITS: &str = r#"
[tenants.load]
rate = "1000000/s"
burst = 1000000
servers = ["std"]
limits."std/echo" = { rate = "1000000/s", max_in_flight = 10000 }
[servers.std]
command = "trunkline"
args = ["std", "--max-concurrent", "64"]
max_in_flight = 128
"#;

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Rest => "rest",
            Self::Batch => "batch",
            Self::Mcp => "mcp",
            Self::Limited => "limited",
            Self::Keyed => "keyed",
        }
    }
}

pub struct Target {
    kind: Kind,
    address: SocketAddr,
    process: Option<Process>,
    /// The API key that callers send, if they must.
    key: Option<String>,
}

struct Process {
    child: Child,
    pid: u32,
    /// The bundled server, below the gateway.
    server: Option<u32>,
    /// The working directory of the gateway: it must not read a configuration that happens to lie
    /// here.
    _dir: TempDir,
}

/// The processor time used so far, by process.
#[derive(Clone, Copy, Default)]
pub struct CpuTimes {
    pub target: Option<Duration>,
    pub server: Option<Duration>,
    pub client: Option<Duration>,
    /// Everybody together.
    pub machine: Option<Duration>,
}

impl Target {
    /// The one that the options name, or one started for it that is ready.
    pub async fn open(kind: Kind, options: &Options) -> Result<Self> {
        match (&options.url, &options.gateway) {
            (Some(url), _) => Self::external(kind, url).await,
            (None, Some(program)) if kind != Kind::Floor => {
                Self::start(kind, program, options.store.as_deref()).await
            }
            (None, _) => {
                Self::start(kind, &std::env::current_exe()?, options.store.as_deref()).await
            }
        }
    }

    async fn start(kind: Kind, program: &Path, store: Option<&str>) -> Result<Self> {
        let address = free_address().await?;
        let dir = tempfile::tempdir()?;
        let program = std::path::absolute(program)?;
        let key = match kind {
            Kind::Limited => Some(create_key(&program, dir.path()).await?),
            Kind::Floor | Kind::Rest | Kind::Batch | Kind::Mcp | Kind::Keyed => {
                std::fs::write(dir.path().join("trunkline.toml"), WITHOUT_LIMITS)?;
                None
            }
        };
        let mut command = Command::new(program);
        match kind {
            Kind::Floor => command.arg("floor"),
            _ => command.arg("serve").arg("--listen"),
        };
        command.arg(address.to_string()).current_dir(dir.path()).env("RUST_LOG", "warn");
        command.envs(store.map(|url| ("TRUNKLINE_STORE__URL", url)));
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn()?;
        let pid = child.id().context("it ended at once")?;
        wait_until_ready(kind, address).await?;
        sleep(SETTLE).await;
        let server = usage::find_below(pid, "std");
        let process = Process { child, pid, server, _dir: dir };
        Ok(Self { kind, address, process: Some(process), key })
    }

    async fn external(kind: Kind, url: &Url) -> Result<Self> {
        let host = url.host_str().context("the URL names no host")?;
        let port = url.port_or_known_default().context("the URL names no port")?;
        let address = lookup_host((host, port)).await?.next().context("the host has no address")?;
        if url.scheme() != "http" {
            bail!("only http can be measured");
        }
        Ok(Self { kind, address, process: None, key: None })
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub fn memory(&self) -> Option<Memory> {
        usage::memory(self.process.as_ref()?.pid)
    }

    pub fn cpu_times(&self) -> CpuTimes {
        let process = self.process.as_ref();
        CpuTimes {
            target: process.and_then(|process| usage::cpu_time(process.pid)),
            server: process.and_then(|process| usage::cpu_time(process.server?)),
            client: usage::cpu_time(std::process::id()),
            machine: usage::busy_time(),
        }
    }

    /// Ends it, if it was started here.
    pub async fn stop(self) {
        let Some(mut process) = self.process else { return };
        if let Some(pid) = Pid::from_raw(process.pid.cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(STOP_TIMEOUT, process.child.wait()).await.is_err() {
            let _ = process.child.kill().await;
        }
    }
}

/// Writes a configuration with a tenant, and makes an API key for it.
async fn create_key(program: &Path, dir: &Path) -> Result<String> {
    std::fs::write(dir.join("trunkline.toml"), WITH_LIMITS)?;
    let mut command = Command::new(program);
    command.args(["key", "create", "load", "--create"]).current_dir(dir);
    let output = command.output().await?;
    if !output.status.success() {
        bail!("no key was made: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// An address that was free a moment ago.
async fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?)
}

async fn wait_until_ready(kind: Kind, address: SocketAddr) -> Result<()> {
    let request = match kind {
        Kind::Floor => {
            format!("POST /echo HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n")
        }
        _ => format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\n\r\n"),
    };
    let give_up = Instant::now() + START_TIMEOUT;
    while Instant::now() < give_up {
        if let Ok(mut client) = Client::connect(address).await
            && client.call(request.as_bytes()).await.is_ok_and(|answer| answer.status == 200)
        {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the {} did not get ready", kind.name());
}
