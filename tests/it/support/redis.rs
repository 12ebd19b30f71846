//! A Valkey or Redis of the test's own, that can be killed, and replicas that use it.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trunkline::common::ids::{TenantGeneration, TenantName};
use trunkline::config::Secret;
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::limits::{Limits, SharedLimits};

use super::{LIMIT, eventually, kill, metrics, missing};

const PROGRAMS: [&str; 2] = ["valkey-server", "redis-server"];

/// A server that keeps nothing, on a socket in a directory of its own. It ends with the test.
pub struct Redis {
    dir: TempDir,
    process: Option<Child>,
}

impl Redis {
    /// A server that answers. None if there is no program for it; then the test is skipped, except
    /// where it must not be.
    pub async fn start() -> Option<Self> {
        let mut redis = Self::new();
        redis.begin().await.then_some(redis)
    }

    /// One that does not run yet.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), process: None }
    }

    /// The address of the server, also while it does not run.
    pub fn url(&self) -> Secret {
        Secret::new(format!("unix://{}", self.socket().display()))
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Starts it, for the first time or again. False if there is no program for it.
    pub async fn begin(&mut self) -> bool {
        let Some(process) = PROGRAMS.iter().find_map(|program| self.spawn(program)) else {
            missing("neither valkey-server nor redis-server is installed");
            return false;
        };
        self.process = Some(process);
        eventually("the server answers", async || self.try_ask(&["PING"]).await.ok()).await;
        true
    }

    fn spawn(&self, program: &str) -> Option<Child> {
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(self.socket()).arg("--dir").arg(self.dir.path()).stdout(Stdio::null());
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            other => Some(other.unwrap()),
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Makes it hang: it is there, and says nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill(i32::try_from(self.process.as_ref().unwrap().id()).unwrap(), signal);
    }

    /// Returns the answer to a command.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        redis::from_redis_value(self.try_ask(words).await.unwrap()).unwrap()
    }

    async fn try_ask(&self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(self.url().expose())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

/// The shared limits of one gateway.
pub struct Replica {
    /// The limits.
    pub shared: Arc<SharedLimits>,
    metrics: Metrics,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    /// A replica that tries to reach a server, and waits for its answers however busy the machine
    /// is.
    pub fn start(redis: &Redis) -> Self {
        Self::start_with(redis, LIMIT)
    }

    fn start_with(redis: &Redis, answer_timeout: Duration) -> Self {
        let metrics = Metrics::new();
        let shared = SharedLimits::connect(&redis.url(), answer_timeout, &metrics).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(shared.clone().run(stop.clone()));
        Self { shared, metrics, stop, task }
    }

    /// Two of them, that know of each other.
    pub async fn two(redis: &Redis, answer_timeout: Duration) -> [Self; 2] {
        let replicas = [(); 2].map(|()| Self::start_with(redis, answer_timeout));
        for replica in &replicas {
            replica.sees(2).await;
        }
        replicas
    }

    /// Waits until it reaches the server.
    pub async fn up(&self) {
        eventually("limits are shared", async || self.shared.is_up().then_some(())).await;
    }

    /// Waits until it knows of so many replicas.
    pub async fn sees(&self, replicas: u32) {
        let seen =
            async || (self.shared.is_up() && self.shared.replicas() == replicas).then_some(());
        eventually("the number of replicas is seen", seen).await;
    }

    /// The limits of a tenant here.
    pub fn limits(&self, tenant: &str, policy: &trunkline::common::policy::Policy) -> Limits {
        let tenant = TenantName::parse(tenant).unwrap().of(TenantGeneration::BUILT_IN);
        Limits::new(&tenant, policy, Some(self.shared.clone()))
    }

    /// A metric of it.
    pub fn metric(&self, series: &str) -> f64 {
        let text = String::from_utf8(self.metrics.render()).unwrap();
        metrics::Metrics(text).value(series).unwrap()
    }

    /// Ends it as a gateway that shuts down does.
    pub async fn leave(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Ends it as a gateway that is killed does.
    pub async fn vanish(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}
