//! The server as a client sees it, over a stream in memory.

mod flow;
mod protocol;

use std::io;
use std::num::NonZeroUsize;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;

use super::run;

struct Client {
    input: Option<DuplexStream>,
    output: Lines<BufReader<DuplexStream>>,
    server: JoinHandle<io::Result<()>>,
}

impl Client {
    fn new(max_concurrent: usize) -> Self {
        Self::with_buffers(max_concurrent, 1024 * 1024)
    }

    fn with_buffers(max_concurrent: usize, len: usize) -> Self {
        let (input, server_input) = tokio::io::duplex(len);
        let (server_output, output) = tokio::io::duplex(len);
        let max_concurrent = NonZeroUsize::new(max_concurrent).unwrap();
        Self {
            input: Some(input),
            output: BufReader::new(output).lines(),
            server: tokio::spawn(run(server_input, server_output, max_concurrent)),
        }
    }

    async fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn send(&mut self, message: Value) {
        self.send_line(&message.to_string()).await;
    }

    async fn request(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id = id.into();
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
    }

    async fn call(&mut self, id: impl Into<Value>, tool: &str, arguments: Value) {
        self.request(id, "tools/call", json!({"name": tool, "arguments": arguments})).await;
    }

    async fn notify(&mut self, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Returns the next message; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        let line = self.output.next_line().await.unwrap()?;
        Some(serde_json::from_str(&line).unwrap())
    }

    async fn receive(&mut self) -> Value {
        self.next().await.expect("the server has ended")
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.request(1, method, params).await;
        self.receive().await
    }

    /// Receives `count` answers and returns their ids in order.
    async fn ids(&mut self, count: usize) -> Vec<Value> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.receive().await["id"].clone());
        }
        ids
    }

    /// Ends the input and returns the remaining messages.
    async fn close(mut self) -> Vec<Value> {
        self.input = None;
        let mut rest = Vec::new();
        while let Some(message) = self.next().await {
            rest.push(message);
        }
        self.server.await.unwrap().unwrap();
        rest
    }
}
