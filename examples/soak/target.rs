//! The gateway, its files and its servers, and what the system tells of its process.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::process;

pub const TENANTS: usize = 4;
/// Servers that are killed in turn: each runs long enough between two kills to count as healthy.
const KILLED: u32 = 3;
/// Tells the killed servers apart: their arguments differ by this number and their own.
const KILLED_SLOTS: u32 = 60;
const POLL: Duration = Duration::from_millis(200);

pub struct Target {
    pub address: SocketAddr,
    /// One key for each tenant.
    pub keys: Vec<String>,
    process: Child,
    dir: TempDir,
    changes: u32,
    kills: u32,
}

/// Counts that are the same whenever nobody calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    descriptors: i64,
    in_flight: i64,
}

impl Idle {
    pub fn is_nothing(self) -> bool {
        self.descriptors <= 0 && self.in_flight == 0
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+} descriptors, {} calls in flight", self.descriptors, self.in_flight)
    }
}

impl Target {
    pub async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("trunkline.toml"), configuration(0))?;
        let mut keys = vec![];
        for tenant in 0..TENANTS {
            keys.push(make_key(&dir, tenant).await?);
        }
        let address = process::free_address().await?;
        let process = process::start(process::program()?, dir.path(), address).await?;
        Ok(Self { address, keys, process, dir, changes: 0, kills: 0 })
    }

    pub async fn stop(self) {
        process::stop(self.process).await;
    }

    /// Writes the configuration again, so that the changing server is replaced.
    pub fn change_configuration(&mut self) -> Result<()> {
        self.changes += 1;
        let path = self.dir.path().join("trunkline.toml");
        let next = path.with_extension("next");
        fs::write(&next, configuration(self.changes))?;
        Ok(fs::rename(next, path)?)
    }

    /// Kills the next of the servers that are killed. Returns whether it ran.
    pub fn kill_server(&mut self) -> bool {
        self.kills += 1;
        let slots = (KILLED_SLOTS + self.kills % KILLED).to_string();
        let servers = processes().filter(|(_, arguments)| {
            let arguments: Vec<_> = arguments.split('\0').collect();
            arguments.get(1..4) == Some(&["std", "--max-concurrent", &slots])
        });
        let killed = servers.filter(|(pid, _)| kill_process(*pid, Signal::KILL).is_ok());
        killed.count() > 0
    }

    /// Returns the gateway's resident memory in bytes.
    pub fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(self.proc()?.join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kib.context("the system does not tell the memory")?.parse::<u64>()? << 10)
    }

    pub async fn idle(&self) -> Result<Idle> {
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        let mut client = Client::connect(self.address).await?;
        let answer = client.call(request.as_bytes()).await?;
        ensure!(answer.status == 200, "/metrics has status {}", answer.status);
        let metrics = String::from_utf8_lossy(answer.body);
        let gauges = metrics.lines().filter(|line| line.starts_with("trunkline_calls_in_flight{"));
        let in_flight = gauges.filter_map(|line| line.rsplit(' ').next()?.parse::<i64>().ok());
        let descriptors = fs::read_dir(self.proc()?.join("fd"))?.count() as i64;
        Ok(Idle { descriptors, in_flight: in_flight.sum() })
    }

    /// Waits until the gateway is as idle as it was. Returns what is left beyond that.
    pub async fn wait_until_idle(&self, before: Idle, within: Duration) -> Result<Idle> {
        let end = Instant::now() + within;
        loop {
            let now = self.idle().await?;
            let descriptors = now.descriptors - before.descriptors;
            let left = Idle { descriptors, in_flight: now.in_flight };
            if left.is_nothing() || Instant::now() > end {
                return Ok(left);
            }
            sleep(POLL).await;
        }
    }

    fn proc(&self) -> Result<PathBuf> {
        let pid = self.process.id().context("the gateway has ended")?;
        Ok(format!("/proc/{pid}").into())
    }
}

/// Returns all processes with their arguments.
fn processes() -> impl Iterator<Item = (Pid, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let arguments = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&arguments).into_owned()))
    })
}

async fn make_key(dir: &TempDir, tenant: usize) -> Result<String> {
    let made = Command::new(std::env::current_exe()?)
        .args(["key", "create", &format!("tenant{tenant}"), "--create"])
        .current_dir(dir.path())
        .output()
        .await?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

/// Returns a configuration; `change` replaces the changing server.
fn configuration(change: u32) -> String {
    let server = |name: &str, slots: u32| {
        format!(
            "[servers.{name}]\ncommand = \"trunkline\"\n\
             args = [\"std\", \"--max-concurrent\", \"{slots}\"]\n"
        )
    };
    let killed: String = (0..KILLED)
        .map(|number| server(&format!("killed{number}"), KILLED_SLOTS + number))
        .collect();
    let (steady, changing) = (server("steady", 64), server("changing", 65));
    let tenants: String = (0..TENANTS)
        .map(|tenant| format!("[tenants.tenant{tenant}]\nservers = [\"*\"]\n"))
        .collect();
    format!(
        "[store]\nurl = \"sqlite://soak.db\"\n\
         {tenants}{steady}{killed}{changing}env = {{ CHANGE = \"{change}\" }}\n"
    )
}
