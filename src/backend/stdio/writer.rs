//! The writer task: takes queued frames and writes them whole, many in one write when many wait. If
//! more wait than one write takes, tenants take turns.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::connection::CloseReason;
use crate::backend::connection::liveness::Liveness;
use crate::backend::connection::{CloseOnDrop, Connection, Outgoing};
use crate::backend::stdio::turns::Turns;
use crate::common::ids::TenantId;
use crate::protocol::mcp::requests;

const BATCH_FRAMES_MAX: usize = 128;

/// Writes until the connection closes or a write fails. Dropping `input` then closes the server's
/// standard input, which asks the server to exit.
pub(crate) async fn run(
    connection: Arc<Connection>,
    mut input: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Outgoing>,
) {
    let _close = CloseOnDrop::new(&connection, "its input is not written any more");
    let write_all = async {
        let mut turns = Turns::default();
        let mut batch = Vec::with_capacity(BATCH_FRAMES_MAX);
        let mut buffer = Vec::new();
        while frames.recv_many(&mut turns.waiting, BATCH_FRAMES_MAX).await > 0 {
            // The scheduler runs this task as soon as the first frame is queued. Yielding lets
            // other callers queue their frames first, so that one write serves many.
            if connection.in_flight_len() > 1 {
                tokio::task::yield_now().await;
                frames.recv_many(&mut turns.waiting, BATCH_FRAMES_MAX).now_or_never();
            }
            while !turns.waiting.is_empty() {
                turns.take(&mut batch);
                // The last check before the write drops calls that were cancelled or expired.
                let now = Instant::now();
                let number = connection.in_flight.claim(&mut batch, Outgoing::claimed, now);
                connection.liveness.note_write_begun(now, number);
                let bytes = join(&batch, &mut buffer);
                let mut unwritten = &bytes[..];
                let written = write(&mut input, &mut unwritten, &connection.liveness).await;
                if written.is_err() && unwritten.len() == bytes.len() {
                    connection.in_flight.unclaim(batch.iter().filter_map(Outgoing::claimed));
                }
                written?;
                connection.liveness.note_write_done();
                batch.clear();
                if !turns.waiting.is_empty() {
                    // Frames of other tenants may have come meanwhile, and have their turns. As
                    // many can wait here as the channel holds and calls are in flight.
                    frames.recv_many(&mut turns.waiting, frames.max_capacity()).now_or_never();
                }
            }
        }
        Ok::<(), std::io::Error>(())
    };
    tokio::select! {
        Err(error) = write_all => {
            let reason = format!("its input cannot be written: {}", error.kind());
            connection.close(&CloseReason::Lost(reason));
        }
        _ = connection.closed() => {}
    }
}

/// Returns the bytes of a batch; copies them into `buffer` only if there are several frames.
fn join<'a>(batch: &'a [Outgoing], buffer: &'a mut Vec<u8>) -> Cow<'a, [u8]> {
    if let [single] = batch {
        return single.bytes();
    }
    buffer.clear();
    batch.iter().for_each(|outgoing| buffer.extend_from_slice(&outgoing.bytes()));
    Cow::Borrowed(buffer)
}

/// Writes all bytes. `unwritten` begins after those that were taken, also when a write fails.
async fn write(
    input: &mut (impl AsyncWrite + Unpin),
    unwritten: &mut &[u8],
    liveness: &Liveness,
) -> std::io::Result<()> {
    while !unwritten.is_empty() {
        if input.write_buf(unwritten).await? == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        if !unwritten.is_empty() {
            liveness.note_write_progress();
        }
    }
    input.flush().await
}

impl Outgoing {
    /// Returns the id of the call that must still be in flight when this is written.
    fn claimed(&self) -> Option<u64> {
        match self {
            Self::Request { id, .. } => Some(*id),
            Self::Message { .. } | Self::Cancel { .. } => None,
        }
    }

    /// Returns the tenant whose turn this is.
    pub(super) fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Request { tenant, .. } => Some(tenant),
            Self::Message { .. } | Self::Cancel { .. } => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Request { frame, .. } | Self::Message { frame, .. } => frame.byte_len(),
            Self::Cancel { reason, .. } => reason.len(),
        }
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Request { frame, .. } | Self::Message { frame, .. } => frame.bytes(),
            Self::Cancel { id, reason } => {
                Cow::Owned(requests::cancelled(*id, reason).into_bytes())
            }
        }
    }
}
