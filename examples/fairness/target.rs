//! The gateway that is measured: its tenants and its servers.

use std::fmt::Write as _;
use std::iter::repeat;
use std::net::SocketAddr;

use anyhow::Result;
use tempfile::TempDir;
use tokio::process::Child;
use trunkline::common::ids::TenantName;
use trunkline::config::Secret;
use trunkline::store::{Actor, KeyOwner, Store};

use crate::process;

/// The slots of each server.
pub const SLOTS: usize = 16;
/// The server that never answers a call that was cancelled.
pub const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");

/// A gateway that is ready.
pub struct Target {
    pub tenants: Vec<Tenant>,
    process: Child,
    _dir: TempDir,
}

/// The caller, and how it sends.
#[derive(Clone)]
pub struct Tenant {
    pub address: SocketAddr,
    pub key: String,
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
    /// One with so many tenants, of which the first have these settings.
    pub async fn start(tenants: usize, settings: &[String]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let settings = settings.iter().map(String::as_str).chain(repeat("")).take(tenants);
        let names: Vec<_> = settings.enumerate().map(|(n, it)| (format!("t{n}"), it)).collect();
        let file = dir.path().join("trunkline.toml");
        std::fs::write(&file, configuration(&dir, &names)?)?;
        let address = process::free_address().await?;
        let tenants =
            create_keys(&dir, names.iter().map(|(name, _)| name.as_str()), address).await?;
        let process = process::start(process::program()?, dir.path(), address).await?;
        Ok(Self { tenants, process, _dir: dir })
    }

    /// Ends it.
    pub async fn stop(self) {
        process::stop(self.process).await;
    }
}

impl Tenant {
    /// A whole request for a call that takes so long.
    pub fn request(&self, server: Server, tool: &str, ms: u64) -> Vec<u8> {
        let server = match server {
            Server::Std => "std",
            Server::Fake => "fake",
        };
        self.call(server, tool, "", &format!("{{\"ms\":{ms}}}"))
    }

    /// Returns a whole request for a call with these arguments. Each header ends with CR LF.
    pub fn call(&self, server: &str, tool: &str, headers: &str, arguments: &str) -> Vec<u8> {
        self.send(&format!("POST /v1/servers/{server}/tools/{tool}"), headers, arguments)
    }

    /// Returns a whole request. Each header ends with CR LF.
    pub fn send(&self, method_and_path: &str, headers: &str, body: &str) -> Vec<u8> {
        let Self { address, key } = self;
        format!(
            "{method_and_path} HTTP/1.1\r\nhost: {address}\r\nx-api-key: {key}\r\n\
             {headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

/// Creates a key for each of these tenants, in the store of the gateway's directory.
pub async fn create_keys(
    dir: &TempDir,
    names: impl Iterator<Item = &str>,
    address: SocketAddr,
) -> Result<Vec<Tenant>> {
    let url = format!("sqlite://{}", dir.path().join("trunkline.db").display());
    let store = Store::open(&Secret::new(url), None).await?;
    let mut tenants = vec![];
    for name in names {
        let owner = KeyOwner::Tenant(TenantName::parse(name)?);
        let key = store.create_key(&Actor::cli("fairness"), &owner, None, None).await?.key;
        tenants.push(Tenant { address, key: key.expose().to_owned() });
    }
    store.close().await;
    Ok(tenants)
}

fn configuration(dir: &TempDir, names: &[(String, &str)]) -> Result<String> {
    let log = format!("log={}", dir.path().join("fake.log").display());
    let mut text = format!(
        r#"[servers.std]
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
    for (name, settings) in names {
        // More than any of them has in flight: it is the queue that is measured.
        write!(text, "[tenants.{name}]\nservers = [\"*\"]\nmax_in_flight = 10000\n{settings}\n")?;
    }
    Ok(text)
}
