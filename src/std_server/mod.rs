//! The bundled MCP server: a few small tools over stdio, many calls at once, for both eras.
//!
//! One loop ([`run`]) reads requests, answers most of them at once, and writes the answers. Only
//! calls that wait run as tasks, so a flood of short calls costs one read and one write for many.
//! Long requests are read and computed by other threads, so that they hold up no other call.
//!
//! - `server`: lines in, answers out, and the calls in between; no I/O
//! - `protocol`: answers one request
//! - `tools`: the tools
//! - `calls`: running calls, and requests that wait for one to end
//! - `stdio`: the process's own stdin and stdout

mod calls;
mod protocol;
mod server;
mod stdio;
#[cfg(test)]
mod tests;
mod tools;

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::protocol::jsonrpc::LineSplitter;
use server::StdServer;

pub use stdio::run_on_stdio;

const LINE_LEN_MAX: usize = 16 * 1024 * 1024;
/// Time for calls to finish after the end of input. Short, so that a client that waits for the exit
/// does not send signals.
const CALLS_GRACE: Duration = Duration::from_millis(500);
/// Time after that for which the client may leave answers unread before they are dropped.
const STALLED_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
enum ServePhase {
    Open,
    /// The input has ended; calls may finish until then.
    Finishing(Instant),
    /// Calls were stopped; the client must read some of the answers until then.
    Flushing(Instant),
}

/// Serves one client until `input` ends or `output` fails, with at most `max_concurrent` running
/// calls.
///
/// Answers go out as they get ready; with a maximum of one, in the order of the requests. When the
/// input ends, calls have a short grace period. While the queue is full nothing is read, neither
/// cancellations nor the end of input.
pub async fn run(
    mut input: impl AsyncRead + Unpin + Send + 'static,
    mut output: impl AsyncWrite + Unpin + Send + 'static,
    max_concurrent: NonZeroUsize,
) -> io::Result<()> {
    let mut server = StdServer::new(max_concurrent);
    let mut lines = LineSplitter::new(LINE_LEN_MAX);
    let mut phase = ServePhase::Open;
    let mut unflushed = false;
    loop {
        server.take_lines(&mut lines);
        unflushed |= !server.out.is_empty();
        let is_open = matches!(phase, ServePhase::Open);
        if !is_open && !unflushed && server.is_idle() {
            return Ok(());
        }
        let may_read = is_open && server.has_room();
        // All branches are cancel-safe: a read or write that is dropped while pending moved no
        // bytes, and an ended call stays in its set. No branch body waits, so reading, writing and
        // calls cannot block each other. Reading comes last, because it creates the others' work.
        tokio::select! {
            biased;
            ended = server.running.next(), if !server.running.is_empty() => {
                server.finish(ended);
            }
            written = write_some(&mut output, &server.out), if unflushed => match written {
                Ok(0) => unflushed = false,
                Ok(len) => {
                    server.written(len);
                    if let ServePhase::Flushing(until) = &mut phase {
                        *until = Instant::now() + STALLED_MAX;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    debug!("the client reads no more");
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
            read = async { input.read_buf(lines.space()).await }, if may_read => {
                if has_ended(read) {
                    // The last line may lack its line break.
                    lines.space().extend_from_slice(b"\n");
                    phase = ServePhase::Finishing(Instant::now() + CALLS_GRACE);
                }
            }
            () = expiry(phase) => {
                if let ServePhase::Flushing(_) = phase {
                    let why = "the client has closed its side and leaves the answers unread";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                server.stop_calls();
                phase = ServePhase::Flushing(Instant::now() + STALLED_MAX);
            }
        }
    }
}

/// Writes once, or flushes when all is written; zero means that nothing is left to do.
async fn write_some(output: &mut (impl AsyncWrite + Unpin), bytes: &BytesMut) -> io::Result<usize> {
    if !bytes.has_remaining() {
        return output.flush().await.map(|()| 0);
    }
    match output.write(bytes).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}

/// Returns whether the input has ended. A failed read counts as the end.
fn has_ended(read: io::Result<usize>) -> bool {
    match read {
        Ok(len) => len == 0,
        Err(error) => {
            warn!(%error, "cannot read the input");
            true
        }
    }
}

async fn expiry(phase: ServePhase) {
    match phase {
        ServePhase::Open => std::future::pending().await,
        ServePhase::Finishing(until) | ServePhase::Flushing(until) => sleep_until(until).await,
    }
}
