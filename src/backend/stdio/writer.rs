//! The writer task: takes queued frames and writes them whole, many in one write when many wait.

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
use crate::protocol::mcp::requests;

const BATCH_FRAMES_MAX: usize = 128;
/// Bytes of frames that are written with one system call.
const BATCH_LEN: usize = 64 * 1024;

/// Writes until the connection closes or a write fails. Dropping `input` then closes the server's
/// standard input, which asks the server to exit.
pub(crate) async fn run(
    connection: Arc<Connection>,
    mut input: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Outgoing>,
) {
    let _close = CloseOnDrop::new(&connection, "its input is not written any more");
    let write_all = async {
        let mut frames_taken = Vec::with_capacity(BATCH_FRAMES_MAX);
        let mut buffer = Vec::new();
        while frames.recv_many(&mut frames_taken, BATCH_FRAMES_MAX).await > 0 {
            // The scheduler runs this task as soon as the first frame is queued. Yielding lets
            // other callers queue their frames first, so that one write serves many.
            if connection.in_flight_len() > 1 {
                tokio::task::yield_now().await;
                let space = BATCH_FRAMES_MAX - frames_taken.len();
                frames.recv_many(&mut frames_taken, space).now_or_never();
            }
            while !frames_taken.is_empty() {
                let mut batch: Vec<Outgoing> =
                    frames_taken.drain(..batch_len(&frames_taken)).collect();
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

/// Returns how many frames are written together. The rest can still be cancelled while this batch
/// waits for space in the pipe.
fn batch_len(frames: &[Outgoing]) -> usize {
    let mut len = 0;
    let small = frames.iter().take_while(|outgoing| {
        len += outgoing.bytes().len();
        len <= BATCH_LEN
    });
    small.count().max(1)
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

    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Request { frame, .. } | Self::Message { frame, .. } => {
                Cow::Borrowed(frame.as_bytes())
            }
            Self::Cancel { id, reason } => {
                Cow::Owned(requests::cancelled(*id, reason).into_bytes())
            }
        }
    }
}
