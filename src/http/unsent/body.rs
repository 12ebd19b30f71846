//! A response's body, in pieces that count until they are written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::{Buf, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::progress::{PieceProgress, ResponseProgress};
use crate::common::byte_budget::{BytePermit, TenantBytes};

/// Longer bodies of HTTP/2 are given to h2 without their last byte at first. Shorter ones only
/// while h2 holds other bytes of the connection, which it writes together with that byte: on its
/// own, the byte would be one more packet.
const LONG: usize = 16 * 1024;

/// A body whose bytes count until they are written.
pub(crate) struct UnsentBody {
    inner: Body,
    /// The last byte of a piece that was split.
    last: Option<Bytes>,
    progress: Arc<ResponseProgress>,
    account: Arc<TenantBytes>,
    is_http2: bool,
}

/// Bytes that hyper or h2 hold until they are written.
pub(crate) struct UnsentBytes {
    bytes: Bytes,
    piece: PieceProgress,
    /// The room of a stream's event. A body of known length holds its room as a whole.
    _event: Option<BytePermit>,
}

impl UnsentBody {
    pub(super) fn new(
        inner: Body,
        progress: Arc<ResponseProgress>,
        account: Arc<TenantBytes>,
        is_http2: bool,
    ) -> Self {
        Self { inner, last: None, progress, account, is_http2 }
    }

    /// Splits the last byte from a piece that may get stuck. h2 sends what was given to it without
    /// asking again, and nobody can end the stream once the end was given to it. With the last byte
    /// kept back, hyper goes on waiting until the client has opened its window for all before it.
    fn split(&mut self, mut data: Bytes) -> Bytes {
        let is_split = data.len() > LONG || data.len() > 1 && self.progress.has_company();
        if self.is_http2 && is_split {
            self.last = Some(data.split_off(data.len() - 1));
        }
        data
    }

    fn piece(&self, bytes: Bytes, is_last_byte: bool) -> UnsentBytes {
        // The event is made already, so its room is taken in any case.
        let is_event = !self.progress.is_held() && !bytes.is_empty();
        let event = is_event.then(|| self.account.take_beyond(bytes.len()));
        let piece = PieceProgress::begin(&self.progress, is_last_byte);
        UnsentBytes { bytes, piece, _event: event }
    }
}

impl HttpBody for UnsentBody {
    type Data = UnsentBytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<UnsentBytes>, axum::Error>>> {
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(Ok(Frame::data(self.piece(last, true)))));
        }
        let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map(|frame| {
            frame.map_data(|data| {
                let data = self.split(data);
                self.piece(data, false)
            })
        });
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Asked for before the first piece.
        self.inner.size_hint()
    }
}

impl Buf for UnsentBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, len: usize) {
        self.bytes.advance(len);
        self.piece.advanced();
    }
}
