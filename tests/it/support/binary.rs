//! The program as a process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Client;
use rustix::process::{Signal, getuid};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::api::client;
use super::{
    Answer, Fake, RawHttp, Setup, TRUNKLINE, eventually, in_time, kill, processes, skipped,
};

/// Runs a command to its end.
pub async fn trunkline(setup: &Setup, args: &[&str]) -> Output {
    trunkline_with(setup, args, &[]).await
}

/// Runs the program with more variables in its environment.
pub async fn trunkline_with(setup: &Setup, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = command(setup);
    let output = command.args(args).envs(env.iter().copied()).stdin(Stdio::null()).output();
    in_time("the command's end", output).await.unwrap()
}

/// Runs a command to its end, with this as its standard error.
pub async fn trunkline_with_stderr(setup: &Setup, args: &[&str], stderr: Stdio) -> ExitStatus {
    let mut command = command(setup);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    in_time("the command's end", command.status()).await.unwrap()
}

/// Runs the program with text on its standard input.
pub async fn trunkline_reading(setup: &Setup, args: &[&str], input: &str) -> Output {
    let mut command = command(setup);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may have ended without reading.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    in_time("the command's end", child.wait_with_output()).await.unwrap()
}

fn command(setup: &Setup) -> Command {
    command_of(TRUNKLINE, setup)
}

fn command_of(program: &str, setup: &Setup) -> Command {
    let mut command = Command::new(program);
    command.current_dir(setup.dir.path()).kill_on_drop(true);
    // Without a configuration file, the store is there and not in the home of whoever tests.
    command.env("XDG_STATE_HOME", setup.dir.path().join("state"));
    // What the tests themselves are told is not for the program.
    let ours = |name: &OsString| {
        let is_ours = |name: &str| name.starts_with("TRUNKLINE_") || name.starts_with("OTEL_");
        name == "RUST_LOG" || name.to_str().is_some_and(is_ours)
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command
}

/// A running `trunkline serve`.
pub struct Serving {
    pub addr: SocketAddr,
    pub client: Client,
    setup: Setup,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Serving {
    pub(super) async fn start(setup: Setup, env: &[(&str, &str)]) -> Self {
        let config = setup.write();
        let args = ["--config", config.to_str().unwrap()];
        Self::start_as(command(&setup).args(["serve"]).args(args).envs(env.iter().copied()), setup)
            .await
    }

    /// Starts it in the directory of a setup, with these arguments and nothing else.
    pub async fn start_with(setup: Setup, args: &[&str]) -> Self {
        Self::start_in(setup, args, &[]).await
    }

    /// Starts it so with more variables in its environment.
    pub async fn start_in(setup: Setup, args: &[&str], env: &[(&str, &str)]) -> Self {
        let env = env.iter().copied();
        Self::start_as(command(&setup).arg("serve").args(args).envs(env), setup).await
    }

    /// Starts it by another program with its arguments, which changes what the gateway inherits.
    pub async fn start_by(starter: &str, args: &[&str], setup: Setup) -> Self {
        let config = setup.write();
        let mut command = command_of(starter, &setup);
        command.args(args).args([TRUNKLINE, "serve", "--config"]).arg(config);
        Self::start_as(&mut command, setup).await
    }

    /// Starts it with this as its standard error. The setup must have an address of its own.
    pub async fn start_logging_to(setup: Setup, stderr: Stdio) -> Self {
        Self::start_logging_with(setup, stderr, &[]).await
    }

    /// Starts it with this as its standard error, and with more variables in its environment.
    pub async fn start_logging_with(setup: Setup, stderr: Stdio, env: &[(&str, &str)]) -> Self {
        let config = setup.write();
        let mut command = command(&setup);
        command.args(["serve", "--config"]).arg(config).envs(env.iter().copied());
        let child = command.stderr(stderr).spawn().unwrap();
        let addr = setup.config().listen;
        in_time("listening", async {
            while TcpStream::connect(addr).await.is_err() {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        Self { addr, client: client(), setup, child, log: Arc::default() }
    }

    async fn start_as(command: &mut Command, setup: Setup) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::default();
        tokio::spawn(follow(child.stderr.take().unwrap(), Arc::clone(&log)));
        let addr = eventually("listening", async || {
            log.lock().iter().find_map(|line: &String| {
                let event: Value = serde_json::from_str(line).ok()?;
                event["message"].as_str()?.strip_prefix("listening on http://")?.parse().ok()
            })
        })
        .await;
        Self { addr, client: client(), setup, child, log }
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Starts another one with the same configuration, when this one has ended.
    pub async fn restart(self) -> Self {
        self.restart_with(&[]).await
    }

    /// Starts another one with more variables in its environment.
    pub async fn restart_with(self, env: &[(&str, &str)]) -> Self {
        let again = Self::start(self.setup, env).await;
        again.ready().await;
        again
    }

    pub async fn ready(&self) {
        eventually("ready", async || (self.get("/readyz").await.status == 200).then_some(())).await;
    }

    pub async fn call(&self, server: &str, tool: &str, arguments: impl ToString) -> Answer {
        let url = format!("http://{}/v1/servers/{server}/tools/{tool}", self.addr);
        Answer::of(self.client.post(url).body(arguments.to_string())).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.client.get(format!("http://{}{path}", self.addr))).await
    }

    /// Returns the address for operators, from the log.
    pub async fn operators(&self) -> SocketAddr {
        let address = |line: &String| {
            let event: Value = serde_json::from_str(line).ok()?;
            let url = event["message"].as_str()?.strip_prefix("metrics on http://")?;
            url.strip_suffix("/metrics")?.parse().ok()
        };
        eventually("the address", async || self.log().iter().find_map(address)).await
    }

    pub async fn connect(&self) -> RawHttp {
        RawHttp::connect(self.addr).await
    }

    pub fn fake(&self, id: &str) -> Fake {
        Fake::new(self.setup.dir.path(), id)
    }

    /// How many of the descriptors below `max` the program has in use. `None`, with a word, if
    /// these tests are not run by root: nobody else can see.
    pub fn descriptors_below(&self, max: u64) -> Option<u64> {
        if !getuid().is_root() {
            skipped("not run by root, so the gateway's descriptors cannot be seen");
            return None;
        }
        let fds = format!("/proc/{}/fd", self.pid());
        let is_open = |fd: &u64| Path::new(&fds).join(fd.to_string()).symlink_metadata().is_ok();
        Some((0..max).filter(is_open).count() as u64)
    }

    /// Leaves the program so many descriptors.
    #[cfg(target_os = "linux")]
    pub fn limit_descriptors(&self, max: u64) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};

        let limit = Rlimit { current: Some(max), maximum: Some(max) };
        prlimit(Pid::from_raw(self.pid()), Resource::Nofile, limit).unwrap();
    }

    #[cfg(not(target_os = "linux"))]
    pub fn limit_descriptors(&self, _: u64) {
        panic!("only Linux sets the limits of another process");
    }

    pub fn pid(&self) -> i32 {
        self.child.id().unwrap().cast_signed()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Stops it in its tracks: when this is done, none of its threads runs.
    pub async fn freeze(&self) {
        self.signal(Signal::STOP);
        eventually("stopped", async || processes::is_stopped(self.pid()).then_some(())).await;
    }

    /// Waits for its end; gives the exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        in_time("the end of the gateway", self.child.wait()).await.unwrap().code()
    }

    /// Every process it has started, guards included.
    pub fn processes(&self) -> Vec<i32> {
        processes::with_environment(&self.setup.mark)
    }

    /// Returns the lines logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    pub async fn logged(&self, text: &str) {
        eventually(text, async || {
            self.log.lock().iter().any(|line| line.contains(text)).then_some(())
        })
        .await;
    }
}

async fn follow(stderr: impl AsyncRead + Unpin, log: Arc<Mutex<Vec<String>>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        log.lock().push(line);
    }
}
