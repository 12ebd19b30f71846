//! One connection of HTTP/2, for as many calls as one likes.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{Answer, in_time};

#[derive(Clone)]
pub struct Http2(SendRequest<Full<Bytes>>);

impl Http2 {
    pub async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (requests, connection) = connected.unwrap();
        tokio::spawn(connection);
        Self(requests)
    }

    /// Asks for a page without a key.
    pub async fn get(&mut self, path: &str) -> hyper::Result<u16> {
        let request =
            Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
        let response = in_time("answered", self.0.send_request(request)).await?;
        Ok(response.status().as_u16())
    }

    /// Calls a tool. Dropping the future resets the stream.
    pub async fn call(self, server: &str, tool: &str, arguments: String) -> Answer {
        self.try_call(server, tool, arguments).await.unwrap()
    }

    /// Sends the request, if the connection accepts it.
    pub async fn try_call(
        mut self,
        server: &str,
        tool: &str,
        arguments: String,
    ) -> hyper::Result<Answer> {
        let uri = format!("http://localhost/v1/servers/{server}/tools/{tool}");
        let request = Request::post(uri).body(Full::from(arguments)).unwrap();
        let response = in_time("answered", self.0.send_request(request)).await?;
        let (head, body) = response.into_parts();
        let body = in_time("the body", body.collect()).await?.to_bytes().to_vec();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }
}
