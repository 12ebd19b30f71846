//! A server that is played by a test, and what tests elsewhere need of a backend.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex,
    split,
};

use super::Environment;
use super::client::Audience;
use super::connection::{Connection, Options};
use super::request_ids::RequestIds;
use crate::telemetry::metrics::Metrics;

/// More than any test writes before it reads.
const PIPE_LEN: usize = 1 << 20;

/// Of a gateway whose servers can never be started.
pub fn environment() -> Environment {
    Environment::new("/nowhere/to/be/found".into(), 1000, Metrics::new())
}

/// The other end of a connection: what the server reads and writes.
pub struct Peer {
    input: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

/// A connection to a server that the test plays.
pub fn connect(audience: Audience) -> (Arc<Connection>, Peer) {
    let (ours, theirs) = duplex(PIPE_LEN);
    let (output, input) = split(ours);
    let options = Options {
        generation: 1,
        max_in_flight: 64,
        line_len_max: 100_000,
        grace: Duration::from_secs(5),
        ids: Arc::new(RequestIds::new()),
        audience,
        exit: None,
        metrics: Metrics::new().server("test"),
    };
    let (input_end, output_end) = split(theirs);
    let peer = Peer { input: BufReader::new(input_end).lines(), output: output_end };
    (Connection::open(input, output, options), peer)
}

impl Peer {
    /// The next message from the gateway.
    pub async fn receive(&mut self) -> Value {
        let line = self.input.next_line().await.unwrap().expect("the gateway closed the pipe");
        serde_json::from_str(&line).unwrap()
    }

    /// Sends a message, but for the member that all have.
    pub async fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        self.output.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
}
