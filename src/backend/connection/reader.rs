//! The reader task: reads lines and passes each message on. While the output lasts, the task awaits
//! the next bytes and the offloaded decoding of a long line, never a caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::call::{CloseReason, RequestError};
use super::incoming::{ExpectedAnswers, MessageKind, complete, take_message};
use super::{CloseOnDrop, Connection};
use crate::backend::stdio::process::{ExitReason, exited};
use crate::protocol::jsonrpc::id_scan::LineKind;
use crate::protocol::jsonrpc::{Line, LineSplitter};

/// An overlong line is skipped to its end, so that it fails only its own call. A line longer than
/// this is taken for endless.
const SKIP_LEN_MAX: usize = 256 * 1024 * 1024;

/// The output nearly always ends because the process exits. Waiting for the exit lets callers know
/// how it exited. That takes milliseconds; this is for a busy machine.
const EXIT_WAIT: Duration = Duration::from_millis(500);

/// More garbage than this within `GARBAGE_PERIOD` is a flood.
const GARBAGE_LINES_MAX: usize = 10_000;
const GARBAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
const GARBAGE_PERIOD: Duration = Duration::from_secs(10);

/// Runs until the connection is closed or the server's output ends.
pub(super) async fn run(
    connection: Arc<Connection>,
    output: impl AsyncRead + Unpin,
    line_len_max: usize,
    exit: Option<watch::Receiver<Option<ExitReason>>>,
) {
    let _close = CloseOnDrop::new(&connection, "its output is not read any more");
    let read = async {
        match (read_all(&connection, output, line_len_max).await, exit) {
            (lost @ CloseReason::Lost(_), Some(exit)) => {
                timeout(EXIT_WAIT, exited(exit)).await.map_or(lost, CloseReason::Exited)
            }
            (reason, _) => reason,
        }
    };
    tokio::select! {
        reason = read => connection.close(&reason),
        _ = connection.closed() => {}
    }
}

async fn read_all(
    connection: &Arc<Connection>,
    mut output: impl AsyncRead + Unpin,
    line_len_max: usize,
) -> CloseReason {
    let mut splitter = LineSplitter::new(line_len_max);
    let mut garbage = GarbageCounter::new();
    loop {
        match output.read_buf(splitter.space()).await {
            Ok(0) => return CloseReason::Lost("it closed its output".into()),
            Ok(_) => connection.liveness.note_output(),
            Err(error) => {
                return CloseReason::Lost(format!("its output cannot be read: {}", error.kind()));
            }
        }
        while let Some(line) = splitter.next_line() {
            if let Err(reason) = take_line(connection, line, &mut garbage).await {
                return reason;
            }
        }
        if splitter.skipped_len() > SKIP_LEN_MAX {
            return CloseReason::Protocol("it wrote a line without end".into());
        }
    }
}

async fn take_line(
    connection: &Arc<Connection>,
    line: Line,
    garbage: &mut GarbageCounter,
) -> Result<(), CloseReason> {
    let line = match line {
        Line::Whole(line) => line,
        Line::TooLong { kind } => return fail_overlong(connection, kind),
    };
    let len = line.len();
    // Before the handshake no call has been made, so that no result can be in the line.
    let early = connection.version().is_none().then(|| line.clone());
    let kind = take_message(connection, line, ExpectedAnswers::Any).await;
    if kind != MessageKind::Garbage {
        return Ok(());
    }
    if let Some(line) = early.filter(|line| !line.trim_ascii().is_empty()) {
        connection.stray_output.push_stray(&line);
    }
    if garbage.is_flood(len, Instant::now()) {
        let reason = "it floods its output with lines that are no messages";
        return Err(CloseReason::Protocol(reason.into()));
    }
    Ok(())
}

/// Fails the call that an overlong line answers. If its id cannot be read, some call would wait in
/// vain, so the connection is closed instead.
fn fail_overlong(connection: &Connection, kind: LineKind) -> Result<(), CloseReason> {
    connection.metrics.too_long_lines.inc();
    match kind {
        LineKind::AnswerTo(id) => complete(connection, id, Err(RequestError::TooLarge)),
        LineKind::NotAnAnswer => {}
        LineKind::Unknown => {
            let reason = "it wrote an answer that is too large, without a readable id";
            return Err(CloseReason::Protocol(reason.into()));
        }
    }
    Ok(())
}

/// Counts lines that are not messages. A few are common, since programs print where they should
/// not; a flood is not.
pub(crate) struct GarbageCounter {
    since: Instant,
    lines: usize,
    bytes: usize,
}

impl GarbageCounter {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), lines: 0, bytes: 0 }
    }

    /// Counts one more line; returns whether it makes a flood.
    pub(crate) fn is_flood(&mut self, len: usize, now: Instant) -> bool {
        if now.duration_since(self.since) >= GARBAGE_PERIOD {
            *self = Self { since: now, lines: 0, bytes: 0 };
        }
        self.lines += 1;
        self.bytes += len;
        self.lines > GARBAGE_LINES_MAX || self.bytes > GARBAGE_BYTES_MAX
    }
}

#[cfg(test)]
#[path = "tests/reader.rs"]
mod tests;
