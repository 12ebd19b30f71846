//! One HTTP connection that is kept open, and closed by dropping it.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

/// The least that Linux gives.
const RECEIVE_BYTES: u32 = 2048;
const OPEN_MAX: usize = 64 * 1024;

/// A connection. Nothing runs beside it: it moves only while it is waited for, and ends when it is
/// dropped.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// `None` when the other side has closed.
    driver: Option<Driver>,
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self, String> {
        // An answer that is not read soon fills it.
        let socket = TcpSocket::new_v4().map_err(|error| error.to_string())?;
        socket.set_recv_buffer_size(RECEIVE_BYTES).map_err(|error| error.to_string())?;
        let stream = socket.connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let opened = handshake(TokioIo::new(stream)).await;
        let (sender, driver) = opened.map_err(|error| error.to_string())?;
        Ok(Self { sender, driver: Some(Box::pin(driver)) })
    }

    /// Returns whether another request may be sent on it.
    pub fn is_open(&self) -> bool {
        self.driver.is_some() && !self.sender.is_closed()
    }

    /// Sends a request; the body of the answer is still to come.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        let Self { sender, driver } = self;
        let answer = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        drive(driver, answer).await.map_err(|error| error.to_string())
    }

    /// The next piece of a body, or its end.
    pub async fn next(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, String> {
        while let Some(frame) = drive(&mut self.driver, body.frame()).await {
            if let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// A whole body.
    pub async fn whole(&mut self, mut body: Incoming) -> Result<Bytes, String> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next(&mut body).await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }
}

/// Waits for `work` and moves the connection meanwhile.
async fn drive<T>(driver: &mut Option<Driver>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if let Some(running) = driver
            && running.as_mut().poll(cx).is_ready()
        {
            *driver = None;
        }
        work.as_mut().poll(cx)
    })
    .await
}

/// The messages of an event stream, as its pieces arrive.
#[derive(Default)]
pub struct Events {
    waiting: Vec<u8>,
}

impl Events {
    /// Takes a piece; gives the messages that are complete with it.
    pub fn add(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.waiting.extend_from_slice(piece);
        let mut messages = vec![];
        while let Some(len) = memchr::memmem::find(&self.waiting, b"\n\n") {
            let event: Vec<u8> = self.waiting.drain(..len + 2).collect();
            messages.extend(read_event(&event[..len])?);
        }
        if self.waiting.len() > 2 * OPEN_MAX {
            return Err("an event has no end".to_owned());
        }
        Ok(messages)
    }

    /// Returns whether the stream ended between two events.
    pub fn is_whole(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The message of an event; none in a comment.
fn read_event(event: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut message = None;
    for line in event.split(|byte| *byte == b'\n') {
        match line {
            [b':', ..] | b"event: message" => {}
            _ => match line.strip_prefix(b"data: ") {
                Some(data) if message.is_none() => message = Some(data.to_vec()),
                _ => return Err(format!("a line {:?} in an event", String::from_utf8_lossy(line))),
            },
        }
    }
    Ok(message)
}
