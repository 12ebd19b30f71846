//! The gateways, each in a process of its own, and their sudden ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use sqlx::{AnyConnection, Connection, Executor};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LIMIT, Postgres};

const POLL: Duration = Duration::from_millis(10);

/// A bug that the storm must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    Nothing,
    /// The marks of begun calls do not survive their gateway.
    NoMark,
}

pub struct Gateways {
    list: Vec<Gateway>,
    kills: Mutex<Vec<Instant>>,
    store: String,
    plant: Plant,
    dir: TempDir,
    /// Ends with the storm.
    _postgres: Option<Postgres>,
}

struct Gateway {
    address: SocketAddr,
    /// Has the gateway's configuration and log.
    dir: PathBuf,
    process: tokio::sync::Mutex<Child>,
}

impl Gateways {
    /// Starts the gateways. Returns `None` where PostgreSQL is not installed.
    pub async fn start(count: usize, on_postgres: bool, plant: Plant) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let postgres = if on_postgres { Some(Postgres::start()?) } else { None };
        let store = match &postgres {
            Some(postgres) => postgres.database().await.expose().to_owned(),
            None => format!("sqlite://{}", dir.path().join("keyed.db").display()),
        };
        let mut list = vec![];
        for number in 0..count {
            let own = dir.path().join(format!("gateway-{number}"));
            std::fs::create_dir(&own).unwrap();
            let address = free_address().await;
            let mut configuration = configuration(&store, &dir.path().join("executions"));
            if count > 1 {
                configuration += &format!("[replicas]\nlisten = \"{}\"\n", free_address().await);
            }
            std::fs::write(own.join("trunkline.toml"), configuration).unwrap();
            let process = tokio::sync::Mutex::new(spawn(&own, address));
            list.push(Gateway { address, dir: own, process });
        }
        for gateway in &list {
            gateway.wait_until_ready().await;
        }
        let kills = Mutex::default();
        Some(Self { list, kills, store, plant, dir, _postgres: postgres })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.list.iter().map(|gateway| gateway.address).collect()
    }

    /// Returns the times at which gateways were killed.
    pub fn kills(&self) -> Vec<Instant> {
        self.kills.lock().clone()
    }

    /// Kills a gateway again and again, and starts it anew at once. Of several one at a time is
    /// away.
    pub async fn kill_for_ever(&self, every: Duration) -> Infallible {
        loop {
            sleep(every.mul_f64(rand::rng().random_range(0.5..1.5))).await;
            let gateway = &self.list[rand::rng().random_range(0..self.list.len())];
            let mut process = gateway.process.lock().await;
            self.kills.lock().push(Instant::now());
            process.kill().await.unwrap();
            if self.plant == Plant::NoMark {
                self.remove_marks().await;
            }
            *process = spawn(&gateway.dir, gateway.address);
            gateway.wait_until_ready().await;
        }
    }

    async fn remove_marks(&self) {
        sqlx::any::install_default_drivers();
        let mut store = AnyConnection::connect(&self.store).await.unwrap();
        store.execute("PRAGMA busy_timeout = 5000").await.ok();
        store.execute("DELETE FROM calls WHERE state < 2").await.unwrap();
        store.close().await.unwrap();
    }

    /// Ends the gateways, and counts the executions of each key.
    pub async fn end(self) -> HashMap<u64, usize> {
        for gateway in &self.list {
            gateway.process.lock().await.kill().await.unwrap();
        }
        let log = self.dir.path().join("executions");
        let mut executions = HashMap::new();
        for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
            *executions.entry(line.parse().unwrap()).or_default() += 1;
        }
        executions
    }
}

impl Gateway {
    async fn wait_until_ready(&self) {
        let url = format!("http://{}/readyz", self.address);
        let end = Instant::now() + LIMIT;
        loop {
            let asked = timeout(Duration::from_secs(1), reqwest::get(&url)).await;
            if asked.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status().is_success())) {
                return;
            }
            if Instant::now() > end {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                panic!("the gateway did not get ready: {log}");
            }
            sleep(POLL).await;
        }
    }
}

async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap()
}

fn configuration(store: &str, executions: &std::path::Path) -> String {
    let program = std::env::current_exe().unwrap();
    let (program, executions) = (program.display(), executions.display());
    format!(
        "session_keys = [\"0123456789abcdef0123456789abcdef\"]\n\
         [auth]\nanonymous_tenant = \"local\"\n\
         [store]\nurl = \"{store}\"\n\
         [servers.count]\ncommand = \"{program}\"\nargs = [\"child\", \"{executions}\"]\n"
    )
}

fn spawn(dir: &std::path::Path, address: SocketAddr) -> Child {
    let log = OpenOptions::new().append(true).create(true).open(dir.join("log"));
    let log: File = log.unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["serve", "--listen", &address.to_string()])
        .current_dir(dir)
        .env("RUST_LOG", "warn")
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
