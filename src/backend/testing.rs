//! A server played by a test, and a backend for tests elsewhere.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex,
    split,
};
use tokio::time::Instant;

use super::changes::Changes;
use super::changes::recipients::{Recipients, ServerRequest, SessionClient};
use super::connection::call_notifications::Passed;
use super::connection::request_ids::RequestIds;
use super::connection::{CallPermits, Connection, ConnectionOptions};
use super::instance::pool::Load;
use super::queue::SlotPermit;
use super::supervise::rollover::Stage;
use super::{Backend, Environment, Ready, RunState};
use crate::common::ids::{ServerId, TenantId};
use crate::common::offload::Offload;
use crate::common::policy::Policy;
use crate::config;
use crate::protocol::mcp::requests::Dialect;
use crate::protocol::mcp::{LogLevel, ProtocolVersion};
use crate::telemetry::metrics::Metrics;
use crate::tenants::limits::{Cost, Limits};

/// Longer than most tests write before they read.
pub const PIPE_LEN: usize = 1 << 20;
pub const GRACE: Duration = Duration::from_secs(5);
pub const LINE_LEN_MAX: usize = 100_000;

/// The server's end of a connection.
pub struct Peer {
    pub(super) input: Lines<BufReader<ReadHalf<DuplexStream>>>,
    pub(super) output: WriteHalf<DuplexStream>,
}

/// Opens a connection to a server that the test plays.
pub fn connect(pipe_len: usize, recipients: Recipients) -> (Arc<Connection>, Peer) {
    let (ours, theirs) = duplex(pipe_len);
    let (output, input) = split(ours);
    let options = ConnectionOptions { recipients, ..options() };
    let (input_end, output_end) = split(theirs);
    let peer = Peer { input: BufReader::new(input_end).lines(), output: output_end };
    (Connection::open(input, output, options), peer)
}

/// Options of a connection where a test does not care.
pub(super) fn options() -> ConnectionOptions {
    ConnectionOptions {
        generation: 1,
        max_in_flight: 64,
        line_len_max: LINE_LEN_MAX,
        grace: GRACE,
        ids: Arc::new(RequestIds::default()),
        recipients: Recipients::new(ServerId::parse("test").unwrap(), None),
        exit: None,
        metrics: Metrics::new().server("test"),
        offload: Offload::new(),
    }
}

impl Peer {
    /// Receives the next message from the gateway.
    pub async fn receive(&mut self) -> Value {
        let line = self.input.next_line().await.unwrap().expect("the gateway closed the pipe");
        serde_json::from_str(&line).unwrap()
    }

    /// Sends a message, with the member that all have.
    pub async fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        self.write(&format!("{message}\n")).await;
    }

    /// Sends any text.
    pub async fn write(&mut self, text: &str) {
        self.output.write_all(text.as_bytes()).await.unwrap();
    }

    /// Answers a request.
    pub async fn answer(&mut self, id: &Value, result: Value) {
        self.send(json!({"id": id, "result": result})).await;
    }
}

pub fn environment() -> Environment {
    Environment::new("trunkline".into(), LINE_LEN_MAX, Metrics::new())
}

/// Creates a backend that nobody supervises.
pub fn backend(config: config::ServerConfig) -> Arc<Backend> {
    let id = ServerId::parse("test").unwrap();
    let recipients = Recipients::new(id.clone(), None);
    Backend::new(id, config, environment(), Arc::default(), recipients, Stage::Active)
}

/// Changes the state of the only instance of a backend.
pub fn set_state(backend: &Backend, state: RunState) {
    backend.set_instance_state(0, state, None);
}

/// Connects to a server that the test plays.
pub(super) fn ready() -> (Arc<Ready>, Peer) {
    let recipients = Recipients::new(ServerId::parse("test").unwrap(), None);
    let (connection, peer) = connect(PIPE_LEN, recipients);
    let dialect = Arc::new(Dialect::new(ProtocolVersion::LATEST_LEGACY));
    let ready = Ready { connection, dialect, about: Arc::default(), tools: Arc::default() };
    (Arc::new(ready), peer)
}

impl CallPermits {
    /// Adds permits of an unlimited tenant and of an instance of its own to a slot.
    pub(crate) async fn for_test(slot: SlotPermit) -> Self {
        let limits = Limits::new(&TenantId::gateway(), &Policy::default(), None);
        let program = config::Transport::Stdio(config::Program::default());
        let backend = backend(config::ServerConfig::new(program));
        let (ready, _peer) = ready();
        backend.set_instance_state(0, RunState::Ready(ready), Some(&Load::new(1, false)));
        Self {
            instance: backend.instance_permit(None, Instant::now()).await.unwrap(),
            tenant: Arc::new(limits.admit(Cost::Call).await.unwrap()),
            slot,
        }
    }
}

/// A client that has been silent since a given time, perhaps with a stream.
pub struct Sleeper {
    silent_since: Option<Instant>,
    has_stream: bool,
    has_ended: AtomicBool,
}

impl Sleeper {
    pub fn new(silent_since: Option<Instant>, has_stream: bool) -> Self {
        Self { silent_since, has_stream, has_ended: AtomicBool::new(false) }
    }
}

impl SessionClient for Sleeper {
    fn capabilities(&self) -> &str {
        "{}"
    }
    fn follow_changes(&self, _: &Arc<Changes>) {}
    fn idle_since(&self) -> Option<Instant> {
        self.inactive_since()
    }
    fn inactive_since(&self) -> Option<Instant> {
        self.silent_since.filter(|_| !self.has_stream)
    }
    fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }
    fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
    fn end_if_inactive(&self) -> bool {
        self.end();
        true
    }
    fn end_if_no_request(&self) -> bool {
        self.end_if_inactive()
    }
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
    fn forward_request(&self, _: ServerRequest) {}
    fn cancel_request(&self, _: &Weak<Connection>, _: &RawValue) {}
    fn has_missed_lists(&self) -> bool {
        false
    }
    fn log(&self, _: LogLevel, _: Bytes) -> Passed {
        Passed::Unwanted
    }
    fn notify(&self, _: &str, _: Option<Bytes>) -> Passed {
        Passed::Unwanted
    }
}
