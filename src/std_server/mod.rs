//! The bundled MCP server: a few small tools over stdio, many calls at once, for clients of both eras.
//!
//! Everything happens in one loop ([`run`]): it reads what has arrived, answers at once what can be
//! answered at once, lets the rest run beside it and writes whatever answers there are. Only calls that
//! wait are tasks of their own, so a flood of short calls costs one read and one write for many of them.
//!
//! - `server`: lines in, answers out, and what runs or waits in between; no I/O
//! - `protocol`: one request into its answer
//! - `tools`: what can be called
//! - `running`, `queue`: the calls at work and the requests that wait for them
//! - `stdio`: the process's own stdin and stdout

mod json;
mod protocol;
mod queue;
mod running;
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
use server::Server;

pub use stdio::run_on_stdio;

/// The longest request that is read.
const LINE_LEN_MAX: usize = 16 * 1024 * 1024;
/// How long calls may go on when the input has ended: enough for nearly all, short enough that a client
/// which waits for the exit does not resort to signals.
const CALLS_GRACE: Duration = Duration::from_millis(500);
/// How long after that a peer may leave the remaining answers unread before they are given up.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// How far the end has come.
#[derive(Clone, Copy)]
enum Phase {
    /// Requests arrive.
    Open,
    /// The input has ended; calls may go on until then.
    Finishing { until: Instant },
    /// Calls were stopped; the answers there are must get moving until then.
    Flushing { until: Instant },
}

/// Serves one client until `input` ends or `output` breaks, with at most `max_concurrent` calls at work.
///
/// Answers go out as they get ready; with a maximum of one, in the order of the requests. When the
/// input ends, everything that can be answered within a short grace is. While more waits than the queue
/// takes, nothing is read, neither cancellations nor the end.
pub async fn run(
    mut input: impl AsyncRead + Unpin + Send + 'static,
    mut output: impl AsyncWrite + Unpin + Send + 'static,
    max_concurrent: NonZeroUsize,
) -> io::Result<()> {
    let mut server = Server::new(max_concurrent);
    let mut lines = LineSplitter::new(LINE_LEN_MAX);
    let mut phase = Phase::Open;
    let mut unflushed = false;
    loop {
        server.take_lines(&mut lines);
        unflushed |= !server.out.is_empty();
        let is_open = matches!(phase, Phase::Open);
        if !is_open && !unflushed && server.is_idle() {
            return Ok(());
        }
        // A branch that loses has done nothing: a read or write that is dropped while pending moved no
        // bytes, and an ended call stays in its set. No branch waits inside, so reading, writing and
        // the calls can never hold each other up. Reading comes last, since it makes the others' work.
        tokio::select! {
            biased;
            ended = server.running.next(), if !server.running.is_empty() => {
                server.finish(ended);
            }
            written = write_some(&mut output, &server.out), if unflushed => match written {
                Ok(0) => unflushed = false,
                Ok(len) => {
                    server.written(len);
                    if let Phase::Flushing { until } = &mut phase {
                        *until = Instant::now() + STALLED_MAX;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    debug!("the client reads no more");
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
            read = async { input.read_buf(lines.space()).await }, if is_open && server.has_room() => {
                if has_ended(read) {
                    // The last line may lack its end.
                    lines.space().extend_from_slice(b"\n");
                    phase = Phase::Finishing { until: Instant::now() + CALLS_GRACE };
                }
            }
            () = expiry(phase) => {
                if let Phase::Flushing { .. } = phase {
                    let why = "the client has closed its side and leaves the answers unread";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                server.stop_calls();
                phase = Phase::Flushing { until: Instant::now() + STALLED_MAX };
            }
        }
    }
}

/// Writes once, or flushes when all is written; zero says that nothing is left to do.
async fn write_some(output: &mut (impl AsyncWrite + Unpin), bytes: &BytesMut) -> io::Result<usize> {
    if !bytes.has_remaining() {
        return output.flush().await.map(|()| 0);
    }
    match output.write(bytes).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}

/// An input that fails has ended, whatever the reason.
fn has_ended(read: io::Result<usize>) -> bool {
    match read {
        Ok(len) => len == 0,
        Err(error) => {
            warn!(%error, "cannot read the input");
            true
        }
    }
}

async fn expiry(phase: Phase) {
    match phase {
        Phase::Open => std::future::pending().await,
        Phase::Finishing { until } | Phase::Flushing { until } => sleep_until(until).await,
    }
}
