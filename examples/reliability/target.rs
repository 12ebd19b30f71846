//! The gateway that is watched, with a neighbour (`std`) and a server that misbehaves (`bad`), and
//! calls to the latter.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::process;

const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
/// For a call that may take long.
pub const LONG: Duration = Duration::from_secs(300);

/// How the server that misbehaves is started.
#[derive(Default)]
pub struct Bad {
    /// Instead of the one that does what it is asked.
    pub command: Option<&'static str>,
    /// Its option.
    pub option: Option<&'static str>,
    /// Further lines of its configuration.
    pub settings: &'static str,
}

/// Describes how the gateway is started.
#[derive(Default)]
pub struct Setup {
    pub bad: Bad,
    /// Settings at the top of its configuration.
    pub settings: &'static str,
    /// Tables of its configuration.
    pub tables: String,
    /// Variables of its environment.
    pub env: Vec<(&'static str, String)>,
    /// Takes its log, instead of the standard error of this program.
    pub log: Option<Stdio>,
    /// The most descriptors that it may have.
    pub descriptors: Option<u32>,
    /// Whether the neighbour calls with a key, as the tenant `acme`.
    pub with_key: bool,
}

/// A gateway that is ready.
pub struct Target {
    pub address: SocketAddr,
    /// The key that the neighbour calls with.
    pub key: Option<String>,
    client: Client,
    process: Child,
    dir: TempDir,
}

pub struct Answer {
    pub status: u16,
    /// Of an error.
    pub code: Option<String>,
    pub says_when_to_come_back: bool,
    pub body: Vec<u8>,
    pub took: Duration,
}

impl Target {
    pub async fn start(setup: Setup) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("trunkline.toml"), configuration(&dir, &setup))?;
        let address = process::free_address().await?;
        let mut program = program(setup.descriptors)?;
        if let Some(log) = setup.log {
            program.stderr(log);
        }
        program.envs(setup.env);
        let process = process::start(program, dir.path(), address).await?;
        let client = Client::builder().no_proxy().build()?;
        let mut target = Self { address, key: None, client, process, dir };
        if setup.with_key {
            target.key = Some(target.new_key().await?);
        }
        Ok(target)
    }

    /// Ends it. Returns its exit status if it ended by itself.
    pub async fn stop(self) -> Option<ExitStatus> {
        process::stop(self.process).await
    }

    /// Makes a key of the tenant `acme`.
    pub async fn new_key(&self) -> Result<String> {
        self.command(&["key", "create", "acme"]).await
    }

    /// Runs a command on the store of the gateway, and returns its output.
    pub async fn command(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.args(args).current_dir(self.dir.path()).output().await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`trunkline {}`: {error}", args.join(" "));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Returns the status and the body of a page, unless it takes longer than a second.
    pub async fn get(&self, path: &str, key: Option<&str>) -> Result<(u16, String)> {
        let request = self.client.get(format!("http://{}{path}", self.address));
        let request = request.timeout(Duration::from_secs(1));
        let response = match key {
            Some(key) => request.bearer_auth(key).send().await?,
            None => request.send().await?,
        };
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Calls a tool of the server that misbehaves.
    pub async fn call(&self, tool: &str, arguments: String, deadline: Duration) -> Result<Answer> {
        let url = format!("http://{}/v1/servers/bad/tools/{tool}", self.address);
        let request = self.client.post(url).body(arguments);
        let request = request.header("trunkline-timeout-ms", deadline.as_millis().to_string());
        let began = Instant::now();
        let response = request.send().await?;
        let status = response.status().as_u16();
        let says_when_to_come_back = response.headers().contains_key("retry-after");
        let is_problem = response
            .headers()
            .get("content-type")
            .is_some_and(|it| it == "application/problem+json");
        let body = response.bytes().await?.to_vec();
        let problem: Option<Value> =
            if is_problem { serde_json::from_slice(&body).ok() } else { None };
        let code = problem.and_then(|problem| Some(problem["code"].as_str()?.to_owned()));
        Ok(Answer { status, code, says_when_to_come_back, body, took: began.elapsed() })
    }

    /// How the gateway describes the server that misbehaves.
    pub async fn view(&self) -> Result<Value> {
        view(&self.client, self.address).await
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The gateway's process.
    pub fn pid(&self) -> Result<u32> {
        self.process.id().context("the gateway has ended")
    }

    /// Returns the notes of the misbehaving server; each run begins with `start` and its process
    /// id.
    pub fn log(&self) -> String {
        std::fs::read(log(&self.dir))
            .map_or(String::new(), |it| String::from_utf8_lossy(&it).into())
    }

    /// How often it has been started.
    pub fn starts(&self) -> usize {
        self.log().lines().filter(|line| line.starts_with("start ")).count()
    }
}

/// How the gateway describes the server that misbehaves.
pub async fn view(client: &Client, address: SocketAddr) -> Result<Value> {
    let response = client.get(format!("http://{address}/v1/servers/bad")).send().await?;
    Ok(serde_json::from_slice(&response.bytes().await?)?)
}

impl Answer {
    pub fn is_error(&self, status: u16, code: &str) -> bool {
        self.status == status && self.code.as_deref() == Some(code)
    }

    /// The text that the tool returned, if it did.
    pub fn text(&self) -> Option<String> {
        let result: Value =
            serde_json::from_slice(&self.body).ok().filter(|_| self.status == 200)?;
        Some(result["content"][0]["text"].as_str()?.to_owned())
    }
}

/// Returns the text of a request on a connection that is kept.
pub fn post(address: SocketAddr, path: &str, key: Option<&str>, body: &str) -> String {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: {address}\r\n{key}content-length: {len}\r\n\r\n{body}")
}

/// Returns this program, started with so many descriptors.
fn program(descriptors: Option<u32>) -> Result<Command> {
    let program = process::program()?;
    let Some(max) = descriptors else { return Ok(program) };
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {max}; exec \"$@\"")).arg("sh");
    shell.arg(program.as_std().get_program()).env("RUST_LOG", "error");
    Ok(shell)
}

fn log(dir: &TempDir) -> PathBuf {
    dir.path().join("bad.log")
}

fn configuration(dir: &TempDir, setup: &Setup) -> String {
    let bad = &setup.bad;
    let option = bad.option.map(|option| format!(", {option:?}")).unwrap_or_default();
    format!(
        r#"{top}
[auth]
anonymous_tenant = "local"
[tenants.acme]
servers = ["*"]
{tables}
[servers.std]
command = "trunkline"
args = ["std", "--max-concurrent", "64"]
[servers.bad]
command = {command:?}
args = ["-I", "-S", "-X", "utf8", {FAKE:?}, {log:?}{option}]
start = "lazy"
{settings}
"#,
        command = bad.command.unwrap_or("python3"),
        log = format!("log={}", log(dir).display()),
        settings = bad.settings,
        top = setup.settings,
        tables = setup.tables,
    )
}
