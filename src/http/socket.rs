//! The stream of a connection outside hyper: its first bytes, and what hyper has left of them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::connections::activity::Activity;

/// The first bytes of a connection over HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// A stream, and bytes of it that were read before their turn.
pub(super) struct Socket<S> {
    stream: S,
    first: Bytes,
    /// True once it has been with hyper. HTTP/2 does not come after HTTP/1.
    is_http1: bool,
    activity: Arc<Activity>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, first: Bytes::new(), is_http1: false, activity }
    }

    /// Takes back what hyper has read and not used: the beginning of a head.
    pub(super) fn with_first(self, first: Bytes) -> Self {
        if !first.is_empty() {
            self.activity.bytes_read();
        }
        Self { first, is_http1: true, ..self }
    }

    /// Waits for as many bytes as tell the protocol. Returns `None` if the client has left.
    pub(super) async fn protocol(&mut self) -> Option<Protocol> {
        loop {
            let len = self.first.len().min(PREFACE.len());
            let is_begun = len > 0;
            if is_begun && (self.is_http1 || self.first[..len] != PREFACE[..len]) {
                return Some(Protocol::Http1);
            }
            if len == PREFACE.len() {
                return Some(Protocol::Http2);
            }
            let mut bytes = [0; PREFACE.len()];
            bytes[..len].copy_from_slice(&self.first);
            let more = self.stream.read(&mut bytes[len..]).await.ok().filter(|more| *more > 0)?;
            self.first = Bytes::copy_from_slice(&bytes[..len + more]);
        }
    }

    /// Notes whether the client takes what is written: while it does not, hyper holds more.
    fn wrote<T>(&self, poll: Poll<T>) -> Poll<T> {
        self.activity.set_blocked(poll.is_pending());
        poll
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let len = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..len]);
        self.first.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
