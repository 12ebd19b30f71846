//! HTTP by hand, for what no client would send.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::in_time;

/// One connection to the gateway.
pub struct RawHttp(TcpStream);

impl RawHttp {
    pub async fn connect(addr: SocketAddr) -> Self {
        Self(TcpStream::connect(addr).await.unwrap())
    }

    pub async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Sends the head of a call, with more headers if any.
    pub async fn send_head(&mut self, path: &str, headers: &str) {
        self.send(&format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")).await;
    }

    /// Asks for a page, with a key if there is one, and returns the response.
    pub async fn get(&mut self, path: &str, key: Option<&str>) -> String {
        let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{key}\r\n")).await;
        self.response().await
    }

    /// Returns whether the gateway serves this connection, rather than close it at once.
    pub async fn is_served(&mut self) -> bool {
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        // It may be closed already.
        let _ = self.0.write_all(request).await;
        matches!(in_time("served or closed", self.0.read(&mut [0; 12])).await, Ok(1..))
    }

    /// Sends a whole call.
    pub async fn send_call(&mut self, path: &str, body: &str) {
        self.send_head(path, &format!("content-length: {}\r\n", body.len())).await;
        self.send(body).await;
    }

    /// Reads one response with a declared length.
    pub async fn response(&mut self) -> String {
        let mut text = String::new();
        while !is_complete(&text) {
            let read = in_time("more of the response", self.0.read_u8()).await;
            text.push(read.unwrap_or_else(|error| panic!("{error} after {text:?}")).into());
        }
        text
    }

    /// Reads whatever comes until the other side closes the connection.
    pub async fn rest(&mut self) -> String {
        let mut rest = vec![];
        // A reset is an end as well.
        let _ = in_time("closed", self.0.read_to_end(&mut rest)).await;
        String::from_utf8(rest).unwrap()
    }
}

fn is_complete(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.parse().unwrap())
}
