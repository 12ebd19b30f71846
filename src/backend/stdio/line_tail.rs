//! Keeps the last lines that a server writes beside its messages, for the operator.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::sleep;

use crate::backend::instance::redaction::Redaction;
use crate::protocol::jsonrpc::{Line, LineSplitter};

const TAIL_LINES: usize = 20;
const LINE_LEN_MAX: usize = 1024;
/// After this many bytes the reader pauses, so that a flood slows down the server that causes it
/// and not the machine. About the size of a pipe's buffer.
const BURST: usize = 128 << 10;
const PAUSE: Duration = Duration::from_millis(2);

/// The last lines of a server's standard error, or those of its standard output that are no
/// messages. For the operator only: they may contain anything except the tenant's secrets.
#[derive(Clone, Debug, Default)]
pub struct LineTail(Arc<Mutex<VecDeque<String>>>);

impl LineTail {
    /// Returns the lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }

    /// Keeps a line of standard output that is no message.
    pub(crate) fn push_stray(&self, line: &[u8]) {
        let line = match line.get(..LINE_LEN_MAX) {
            Some(begin) => format!("{}…", String::from_utf8_lossy(begin)),
            None => String::from_utf8_lossy(line).into_owned(),
        };
        self.keep(line);
    }

    /// Returns the lines without the tenant's secrets.
    pub(crate) fn redacted(&self, redaction: &Redaction) -> Vec<String> {
        self.lines().into_iter().map(|line| redaction.redact(line)).collect()
    }

    /// Reads to the end: a server blocks when its standard error is full.
    pub(crate) async fn drain(self, mut stderr: impl AsyncRead + Unpin, redaction: Redaction) {
        let mut splitter = LineSplitter::new(LINE_LEN_MAX);
        let mut since_pause = 0;
        while let Ok(len @ 1..) = stderr.read_buf(splitter.space()).await {
            while let Some(line) = splitter.next_line() {
                match line {
                    Line::Whole(line) => {
                        let line = String::from_utf8_lossy(&line).into_owned();
                        self.push(redaction.redact(line));
                    }
                    Line::TooLong { .. } => self.push("(an overlong line)".to_owned()),
                }
            }
            since_pause += len;
            if since_pause >= BURST {
                since_pause = 0;
                sleep(PAUSE).await;
            }
        }
    }

    fn push(&self, line: String) {
        tracing::debug!(%line, "standard error of a server");
        self.keep(line);
    }

    fn keep(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[tokio::test]
    async fn the_tail_of_standard_error_is_bounded() {
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let tail = LineTail::default();
        let redaction = Redaction::new(&config::Secrets::new());
        tail.clone().drain(text.as_bytes(), redaction).await;
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines.last().unwrap(), "line 999");
    }
}
