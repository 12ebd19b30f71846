//! One HTTP/1.1 connection that is kept open, and opened again when it has ended.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use memchr::{memchr, memmem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_END: &[u8] = b"\r\n\r\n";
const BUFFER_LEN: usize = 16 * 1024;

pub struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    /// Bytes that were read and not used yet.
    buffer: Vec<u8>,
}

pub struct Answer {
    pub status: u16,
    /// `Mcp-Session-Id`
    pub session: Option<String>,
    /// The body is a stream of events.
    pub is_stream: bool,
    pub body: Vec<u8>,
}

/// How the end of a body is found.
enum Length {
    Known(usize),
    Chunked,
    UntilClosed,
}

struct Head {
    answer: Answer,
    length: Length,
    closes: bool,
}

impl Connection {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, stream: None, buffer: Vec::with_capacity(BUFFER_LEN) }
    }

    /// Sends a whole request and reads its answer.
    pub async fn call(&mut self, request: &[u8]) -> Result<Answer> {
        let answer = self.exchange(request).await;
        if answer.is_err() {
            self.close();
        }
        answer
    }

    pub fn close(&mut self) {
        self.stream = None;
        self.buffer.clear();
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Answer> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        self.stream().write_all(request).await?;
        let head_len = self.find(HEAD_END).await? + HEAD_END.len();
        let head = read_head(&self.buffer[..head_len]).ok_or_else(|| invalid("the head"))?;
        self.buffer.drain(..head_len);
        let Head { mut answer, length, closes } = head;
        match length {
            Length::Known(len) => self.take(len, &mut answer.body).await?,
            Length::Chunked => self.take_chunks(&mut answer.body).await?,
            Length::UntilClosed => {
                while self.read_more().await.is_ok() {}
                answer.body.append(&mut self.buffer);
            }
        }
        if closes || matches!(length, Length::UntilClosed) {
            self.close();
        }
        Ok(answer)
    }

    async fn take_chunks(&mut self, body: &mut Vec<u8>) -> Result<()> {
        loop {
            let line_len = self.find(b"\r\n").await?;
            let digits = self.buffer[..line_len].split(|byte| *byte == b';').next();
            let len = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let len = len.and_then(|len| usize::from_str_radix(len.trim(), 16).ok());
            let len = len.ok_or_else(|| invalid("the length of a chunk"))?;
            self.buffer.drain(..line_len + 2);
            self.take(len, body).await?;
            let mut line_end = vec![];
            self.take(2, &mut line_end).await?;
            if len == 0 {
                return Ok(());
            }
        }
    }

    /// Returns where `what` begins.
    async fn find(&mut self, what: &[u8]) -> Result<usize> {
        let mut searched = 0;
        loop {
            if let Some(at) = memmem::find(&self.buffer[searched..], what) {
                return Ok(searched + at);
            }
            searched = (self.buffer.len() + 1).saturating_sub(what.len());
            self.read_more().await?;
        }
    }

    async fn take(&mut self, len: usize, to: &mut Vec<u8>) -> Result<()> {
        while self.buffer.len() < len {
            self.read_more().await?;
        }
        to.extend(self.buffer.drain(..len));
        Ok(())
    }

    async fn read_more(&mut self) -> Result<()> {
        let stream = self.stream.as_mut().expect("the request was written to it");
        match stream.read_buf(&mut self.buffer).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    fn stream(&mut self) -> &mut TcpStream {
        self.stream.as_mut().expect("it was connected")
    }
}

fn read_head(head: &[u8]) -> Option<Head> {
    let head = std::str::from_utf8(head).ok()?;
    let (first, fields) = head.split_once("\r\n")?;
    let status = first.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut answer = Answer { status, session: None, is_stream: false, body: vec![] };
    let has_body = status != 204 && status != 304;
    let mut length = if has_body { Length::UntilClosed } else { Length::Known(0) };
    let mut closes = false;
    for field in fields.split("\r\n") {
        let Some(colon) = memchr(b':', field.as_bytes()) else { continue };
        let (name, value) = (&field[..colon], field[colon + 1..].trim());
        if name.eq_ignore_ascii_case("content-length") {
            length = Length::Known(value.parse().ok()?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            length = Length::Chunked;
        } else if name.eq_ignore_ascii_case("content-type") {
            answer.is_stream = value.starts_with("text/event-stream");
        } else if name.eq_ignore_ascii_case("mcp-session-id") {
            answer.session = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        }
    }
    Some(Head { answer, length, closes })
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("{what} cannot be read"))
}
