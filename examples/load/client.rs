//! One HTTP/1.1 connection that is kept open. Written by hand to cost as little as possible: the
//! client shares the machine with what it measures.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use memchr::{memchr_iter, memmem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_END: &[u8] = b"\r\n\r\n";
/// Enough for the usual answer in one read.
const BUFFER_LEN: usize = 4096;

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

pub struct Answer<'a> {
    pub status: u16,
    #[allow(dead_code, reason = "for programs that need a header")]
    pub head: &'a [u8],
    pub body: &'a [u8],
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(BUFFER_LEN) })
    }

    /// Sends a whole request and reads its answer.
    pub async fn call(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.buffer.clear();
        self.stream.write_all(request).await?;
        let head_len = loop {
            let searched = self.buffer.len().saturating_sub(HEAD_END.len());
            self.read_more().await?;
            if let Some(at) = memmem::find(&self.buffer[searched..], HEAD_END) {
                break searched + at + HEAD_END.len();
            }
        };
        let (status, body_len) = read_head(&self.buffer[..head_len])
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the answer's head is not plain"))?;
        while self.buffer.len() < head_len + body_len {
            self.read_more().await?;
        }
        if self.buffer.len() > head_len + body_len {
            return Err(Error::new(ErrorKind::InvalidData, "there is more than one answer"));
        }
        let (head, body) = self.buffer.split_at(head_len);
        Ok(Answer { status, head, body })
    }

    /// Sends a whole request and reads until the connection ends.
    #[allow(dead_code, reason = "for programs that open streams")]
    pub async fn drain(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await?;
        loop {
            self.buffer.clear();
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The status, and the length of the body, which must be declared.
fn read_head(head: &[u8]) -> Option<(u16, usize)> {
    let status = text(head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?)?.parse().ok()?;
    let mut line_start = 0;
    for line_end in memchr_iter(b'\n', head) {
        let line = &head[line_start..line_end];
        line_start = line_end + 1;
        let name = b"content-length:";
        if line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)) {
            return Some((status, text(&line[name.len()..])?.trim().parse().ok()?));
        }
    }
    None
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}
