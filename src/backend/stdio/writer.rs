//! The writer task: takes queued frames and writes them whole, many in one write when many wait.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::connection::CloseReason;
use crate::backend::connection::liveness::Liveness;
use crate::backend::connection::{Connection, Outgoing};
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
    let write_all = async {
        let mut frames_taken = Vec::with_capacity(BATCH_FRAMES_MAX);
        let mut buffer = Vec::new();
        while frames.recv_many(&mut frames_taken, BATCH_FRAMES_MAX).await > 0 {
            // The scheduler runs this task as soon as the first frame is queued. Yielding lets
            // other callers queue their frames first, so that one write serves many.
            if connection.in_flight_len() > 1 {
                tokio::task::yield_now().await;
                take_waiting(&mut frames, &mut frames_taken);
            }
            while !frames_taken.is_empty() {
                let mut batch: Vec<Outgoing> =
                    frames_taken.drain(..batch_len(&frames_taken)).collect();
                // The last check before the write drops calls that were cancelled or expired.
                let now = Instant::now();
                let number = connection.in_flight.claim(&mut batch, Outgoing::claimed, now);
                connection.liveness.note_write_begun(now, number);
                let written = write_batch(&mut input, &mut buffer, &batch, &connection.liveness);
                if let Err(unwritten) = written.await {
                    if unwritten.nothing_written {
                        connection.in_flight.unclaim(batch.iter().filter_map(Outgoing::claimed));
                    }
                    return Err(unwritten.error);
                }
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

fn take_waiting(frames: &mut mpsc::Receiver<Outgoing>, taken: &mut Vec<Outgoing>) {
    while taken.len() < BATCH_FRAMES_MAX
        && let Ok(frame) = frames.try_recv()
    {
        taken.push(frame);
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

/// A batch that was not written in full.
struct Unwritten {
    error: std::io::Error,
    nothing_written: bool,
}

async fn write_batch(
    input: &mut (impl AsyncWrite + Unpin),
    buffer: &mut Vec<u8>,
    batch: &[Outgoing],
    liveness: &Liveness,
) -> Result<(), Unwritten> {
    match batch {
        [] => Ok(()),
        [single] => write(input, &single.bytes(), liveness).await,
        several => {
            buffer.clear();
            several.iter().for_each(|outgoing| buffer.extend_from_slice(&outgoing.bytes()));
            write(input, buffer, liveness).await
        }
    }
}

async fn write(
    input: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    liveness: &Liveness,
) -> Result<(), Unwritten> {
    let mut taken = 0;
    while taken < bytes.len() {
        let unwritten = |error| Unwritten { error, nothing_written: taken == 0 };
        taken += match input.write(&bytes[taken..]).await.map_err(unwritten)? {
            0 => return Err(unwritten(ErrorKind::WriteZero.into())),
            len => len,
        };
        if taken < bytes.len() {
            liveness.note_write_progress();
        }
    }
    input.flush().await.map_err(|error| Unwritten { error, nothing_written: false })
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
