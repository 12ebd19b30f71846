//! Watches the gateway while a server misbehaves: its memory, and the state that it reports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use reqwest::Client;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::target::{Target, view};

const EVERY: Duration = Duration::from_millis(50);

/// Looks until ended.
pub struct Watch {
    pid: u32,
    memory_before: u64,
    seen: Arc<Mutex<Seen>>,
    looking: JoinHandle<()>,
}

#[derive(Default)]
pub struct Seen {
    /// By how much its memory grew at most, in bytes.
    pub growth: u64,
    /// By how much it is more in the end.
    pub growth_kept: u64,
    memory_max: u64,
    /// The distinct states that the gateway reported for the server.
    said: Vec<String>,
    since: String,
}

impl Watch {
    pub fn start(target: &Target) -> Result<Self> {
        let (pid, seen) = (target.pid()?, Arc::new(Mutex::new(Seen::default())));
        let look = look(pid, target.client().clone(), target.address, seen.clone());
        Ok(Self { pid, memory_before: resident(pid)?, seen, looking: tokio::spawn(look) })
    }

    pub fn end(self) -> Seen {
        self.looking.abort();
        let mut seen = std::mem::take(&mut *self.seen.lock());
        // A gateway that has ended has no memory.
        seen.growth_kept =
            resident(self.pid).unwrap_or_default().saturating_sub(self.memory_before);
        seen.growth = seen.memory_max.saturating_sub(self.memory_before).max(seen.growth_kept);
        seen
    }
}

impl Seen {
    /// In one line.
    pub fn story(&self) -> String {
        format!("{}; the last since {}", self.said.join(", "), self.since)
    }

    fn note_memory(&mut self, memory: u64) {
        self.memory_max = self.memory_max.max(memory);
    }

    fn note(&mut self, said: String, since: String) {
        self.since = since;
        self.said.retain(|it| *it != said);
        self.said.push(said);
    }
}

async fn look(pid: u32, client: Client, address: SocketAddr, seen: Arc<Mutex<Seen>>) {
    loop {
        let memory = resident(pid).unwrap_or_default();
        if let Ok(view) = view(&client, address).await {
            let state = view["state"].as_str().unwrap_or("?").to_owned();
            let said = match view["reason"].as_str() {
                Some(reason) => format!("{state} ({reason})"),
                None => state,
            };
            seen.lock().note(said, view["since"].as_str().unwrap_or("?").to_owned());
        }
        seen.lock().note_memory(memory);
        sleep(EVERY).await;
    }
}

/// The resident memory of a process, in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("its memory is not told")?.parse::<u64>()? << 10)
}
