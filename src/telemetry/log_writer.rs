//! Writes log lines in a thread of its own.
//!
//! Nothing that serves calls waits for the log, or fails because of it. A pipe that nobody reads
//! holds up the log's thread alone, and a line that cannot be written is dropped and counted.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Stderr};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Bytes that wait to be written; as many are being written. Lines beyond that are dropped.
const QUEUE_LEN_MAX: usize = 4 << 20;
/// The log's thread waits so long for more lines before it writes: waking it for each one costs
/// more than the line.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// The log's thread reports dropped lines in this room, which nobody else gets.
const REPORT_LEN_MAX: usize = 4 << 10;
/// The end of the process waits this long for lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    static IS_LOG_THREAD: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Default)]
pub(super) struct LogWriter(Arc<Shared>);

/// A place to write lines to.
pub(super) trait LineSink: AsFd + Send + 'static {
    /// Names the place, for the log.
    fn name(&self) -> String;

    /// Opens the place again, if that is a file, which may have been moved away.
    fn reopen(&mut self) {}
}

impl LineSink for Stderr {
    fn name(&self) -> String {
        "standard error".to_owned()
    }
}

/// A file of lines, opened again by its path.
pub(super) struct LineFile {
    path: PathBuf,
    file: File,
}

impl LineFile {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self { file: append_to(&path)?, path })
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o640).open(path)
}

impl AsFd for LineFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl LineSink for LineFile {
    fn name(&self) -> String {
        format!("`{}`", self.path.display())
    }

    fn reopen(&mut self) {
        match append_to(&self.path) {
            Ok(file) => self.file = file,
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%error, "`{path}` (`[log] file`) cannot be opened again");
            }
        }
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    gathered: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Whole lines.
    lines: Vec<u8>,
    is_writing: bool,
    /// Whether the sink is to be opened again before the next line is written.
    must_reopen: bool,
    /// Lines dropped since the start of the process.
    dropped: u64,
    /// How many of these the log has told.
    reported: u64,
    counter: Option<IntCounter>,
}

impl Queue {
    fn drop_lines(&mut self, lines: u64) {
        self.dropped += lines;
        self.counter.iter().for_each(|counter| counter.inc_by(lines));
    }
}

impl LogWriter {
    /// Starts the thread that writes to `sink`.
    pub(super) fn start(sink: impl LineSink) -> io::Result<Self> {
        let writer = Self::default();
        let shared = writer.0.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || shared.write_to(sink))?;
        Ok(writer)
    }

    /// Counts dropped lines there too, those so far included.
    pub(super) fn count_dropped_in(&self, counter: IntCounter) {
        let mut queue = self.0.queue.lock();
        counter.inc_by(queue.dropped);
        queue.counter = Some(counter);
    }

    /// Queues one line, which must end with a newline. Never waits.
    pub(super) fn push(&self, line: &[u8]) {
        let reserve = if IS_LOG_THREAD.get() { REPORT_LEN_MAX } else { 0 };
        let mut queue = self.0.queue.lock();
        if queue.lines.len() + line.len() > QUEUE_LEN_MAX + reserve {
            queue.drop_lines(1);
        } else {
            let was_empty = queue.lines.is_empty();
            queue.lines.extend_from_slice(line);
            if was_empty {
                self.0.filled.notify_one();
            }
        }
    }

    /// Has the sink opened again, before any line that is pushed after this.
    pub(super) fn reopen(&self) {
        self.0.queue.lock().must_reopen = true;
        self.0.filled.notify_one();
    }

    /// Waits until all lines are written, for at most [`FLUSH_TIMEOUT`].
    pub(super) fn flush(&self) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty();
        let mut queue = self.0.queue.lock();
        self.0.written.wait_while_for(&mut queue, is_busy, FLUSH_TIMEOUT);
    }
}

impl io::Write for LogWriter {
    /// Takes a whole line, as the formatter of events writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn write_to(&self, mut sink: impl LineSink) {
        IS_LOG_THREAD.set(true);
        let mut is_torn = false;
        loop {
            let (lines, must_reopen) = self.next_lines();
            if must_reopen {
                sink.reopen();
                is_torn = false;
            }
            // Ends a line of which only a part could be written.
            is_torn = is_torn && !write(&sink, b"\n").is_empty();
            let unwritten = if is_torn { &lines } else { write(&sink, &lines) };
            let written = &lines[..lines.len() - unwritten.len()];
            is_torn |= written.last().is_some_and(|end| *end != b'\n');
            if unwritten.is_empty() {
                self.report_dropped(&sink.name());
            } else {
                let count = unwritten.iter().filter(|byte| **byte == b'\n').count();
                self.queue.lock().drop_lines(count as u64);
            }
        }
    }

    /// Waits for lines, or for the order to open the sink again.
    fn next_lines(&self) -> (Vec<u8>, bool) {
        let mut queue = self.queue.lock();
        queue.is_writing = false;
        if queue.lines.is_empty() {
            self.written.notify_all();
            let is_idle = |queue: &mut Queue| queue.lines.is_empty() && !queue.must_reopen;
            self.filled.wait_while(&mut queue, is_idle);
            // Nobody notifies this one.
            self.gathered.wait_for(&mut queue, GATHER_TIME);
        }
        queue.is_writing = true;
        let must_reopen = mem::take(&mut queue.must_reopen);
        (mem::take(&mut queue.lines), must_reopen)
    }

    /// Tells of dropped lines, now that lines can be written again.
    fn report_dropped(&self, sink: &str) {
        let (dropped, in_all) = {
            let mut queue = self.queue.lock();
            let in_all = queue.dropped;
            (in_all - mem::replace(&mut queue.reported, in_all), in_all)
        };
        if dropped > 0 {
            tracing::warn!(
                dropped,
                in_all,
                "{dropped} log lines were dropped: {sink} could not be written"
            );
        }
    }
}

/// Writes until all is written or a write fails. Returns the rest.
fn write<'a>(sink: &impl AsFd, mut bytes: &'a [u8]) -> &'a [u8] {
    while !bytes.is_empty() {
        match rustix::io::write(sink, bytes) {
            Ok(0) => break,
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::INTR) => {}
            // Whoever shares the pipe or the terminal may have made it non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(sink, PollFlags::OUT)], None);
            }
            Err(_) => break,
        }
    }
    bytes
}

#[cfg(test)]
#[path = "tests/log_writer.rs"]
mod tests;
