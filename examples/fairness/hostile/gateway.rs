//! The gateway of one round: the real program in a process of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::{Duration, interval, sleep};

use crate::client::Client;
use crate::target::{Tenant, create_keys};
use crate::{bare, process};

/// Tenants that each row has.
const TENANTS: [&str; 2] = ["hostile", "neighbour"];
/// The pause of a hostile connection that was closed: the driver shares the gateway's processors.
const PAUSE: Duration = Duration::from_millis(1);

/// A gateway that is ready.
pub struct Gateway {
    /// Crashes that the hostile tenant has caused. Its tasks count them.
    pub crashes: Arc<AtomicU64>,
    tenants: BTreeMap<String, Tenant>,
    process: Child,
    dir: TempDir,
}

impl Gateway {
    /// Starts the program with these settings.
    pub async fn start(settings: impl Fn(&Path) -> Result<String>) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut text = settings(dir.path())?;
        for name in TENANTS {
            let heading = format!("[tenants.{name}]");
            if !text.contains(&heading) {
                write!(text, "\n{heading}\nservers = [\"*\"]\n")?;
            }
        }
        std::fs::write(dir.path().join("trunkline.toml"), &text)?;
        let names = text.lines().filter_map(tenant_of).collect::<Vec<_>>();
        let address = process::free_address().await?;
        let keys = create_keys(&dir, names.iter().copied(), address).await?;
        let tenants = names.iter().map(|&name| name.to_owned()).zip(keys).collect();
        let process = process::start(process::program()?, dir.path(), address).await?;
        Ok(Self { crashes: Arc::default(), tenants, process, dir })
    }

    /// Starts a bare server in the gateway's place. Whose a call is does not matter to it.
    pub async fn bare() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let address = process::free_address().await?;
        let tenant = |name: &str| (name.to_owned(), Tenant { address, key: "any".to_owned() });
        let tenants = TENANTS.map(tenant).into();
        let mut program = process::program()?;
        program.arg(bare::COMMAND);
        let process = process::start(program, dir.path(), address).await?;
        Ok(Self { crashes: Arc::default(), tenants, process, dir })
    }

    /// Returns a tenant of the settings, with a key of its own.
    pub fn tenant(&self, name: &str) -> &Tenant {
        &self.tenants[name]
    }

    /// Returns the directory of the settings, which is the process's working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the most memory that the process has had resident.
    pub fn peak_mib(&self) -> Result<u64> {
        let pid = self.process.id().context("the gateway has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.context("the system does not tell the memory")? / 1024)
    }

    /// Ends the process.
    pub async fn stop(self) {
        process::stop(self.process).await;
    }
}

/// Returns the name in a line such as `[tenants.name]`.
fn tenant_of(line: &str) -> Option<&str> {
    line.trim().strip_prefix("[tenants.")?.strip_suffix(']').filter(|name| !name.contains('.'))
}

/// Opens so many connections that send a request again and again, whatever the answers are.
pub fn again(tenant: &Tenant, connections: usize, request: &[u8]) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let (address, request) = (tenant.address, request.to_owned());
        tasks.spawn(async move {
            loop {
                if let Ok(mut client) = Client::connect(address).await {
                    while client.call(&request).await.is_ok() {}
                }
                sleep(PAUSE).await;
            }
        });
    }
    tasks
}

/// Opens so many connections that together send a request so often in a second, whatever the
/// answers are.
pub fn at_rate(tenant: &Tenant, connections: u32, per_s: u32, request: &[u8]) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let every = Duration::from_secs(1) * connections / per_s;
    for index in 0..connections {
        let (address, request) = (tenant.address, request.to_owned());
        tasks.spawn(async move {
            sleep(every * index / connections).await;
            let mut due = interval(every);
            loop {
                if let Ok(mut client) = Client::connect(address).await {
                    loop {
                        due.tick().await;
                        if client.call(&request).await.is_err() {
                            break;
                        }
                    }
                }
                sleep(PAUSE).await;
            }
        });
    }
    tasks
}
