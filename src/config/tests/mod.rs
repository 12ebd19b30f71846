//! Loads whole configurations, as `trunkline serve` would.

mod difference;
mod environment;
mod files;
mod mcp_clients;
mod mcp_files;
mod mistakes;
mod oauth;
mod replicas;
mod secrets;
mod store_place;
mod toolsets;
mod upstream_oauth;

use std::fs;
use std::time::Duration;

use super::*;
use crate::common::ids::ServerId;

/// A directory with files in it, and the sources that read them.
struct Setup {
    dir: tempfile::TempDir,
    sources: Sources,
}

impl Setup {
    /// No file at all.
    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources {
            file: None,
            mcp_file: None,
            listen: None,
            env: vec![("PATH".to_owned(), "/bin".to_owned())],
            working_dir: dir.path().to_owned(),
            own_program: "/opt/trunkline".into(),
        };
        Self { dir, sources }
    }

    /// A `trunkline.toml`.
    fn toml(text: &str) -> Self {
        let setup = Self::empty();
        fs::write(setup.dir.path().join("trunkline.toml"), text).unwrap();
        setup
    }

    /// An `mcp.json`, named by `--mcp-config`.
    fn mcp(mut self, text: &str) -> Self {
        fs::write(self.dir.path().join("mcp.json"), text).unwrap();
        self.sources.mcp_file = Some("mcp.json".into());
        self
    }

    fn var(mut self, name: &str, value: &str) -> Self {
        self.sources.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn listen(mut self, address: &str) -> Self {
        self.sources.listen = Some(address.to_owned());
        self
    }

    fn load(&self) -> Config {
        load(&self.sources).unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(&self) -> String {
        load(&self.sources).unwrap_err().to_string()
    }
}

fn names(config: &Config) -> Vec<&str> {
    config.servers.keys().map(ServerId::as_str).collect()
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// The program of a server that has one.
fn program<'a>(config: &'a Config, server: &str) -> &'a Program {
    match &config.servers[server].transport {
        Transport::Stdio(program) => program,
        Transport::Http(_) => panic!("`{server}` has no program"),
    }
}

/// Returns the environment of a server's program.
fn variable(config: &Config, server: &str, name: &str) -> String {
    let filled = program(config, server).env[name].fill(&Secrets::new());
    filled.unwrap().expose().to_owned()
}
