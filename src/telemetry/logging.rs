//! Structured logs on standard error: text for a person at a terminal, JSON for a machine.
//!
//! A thread of its own writes them ([`super::log_writer`]), panics included.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write as _, stderr};
use std::panic::{self, PanicHookInfo};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;

use prometheus::IntCounter;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

use super::json_lines::JsonLines;
pub use super::json_lines::lines;
use super::log_writer::{LineFile, LogWriter};

/// Set once the process logs.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Starts logging for this process: what `RUST_LOG` says, by default `info` and above. [`flush`]
/// must be called at the end.
pub fn init() -> io::Result<()> {
    init_from(LevelFilter::INFO)
}

/// Starts logging for a command that shows its warnings itself.
pub fn init_errors() -> io::Result<()> {
    init_from(LevelFilter::ERROR)
}

fn init_from(default: LevelFilter) -> io::Result<()> {
    let started = LogWriter::start(stderr())?;
    let writer = WRITER.get_or_init(|| started);
    let (filter, mistakes) = filter(&env::var("RUST_LOG").unwrap_or_default(), default);
    mistakes.iter().for_each(print_line);
    let registry = tracing_subscriber::registry().with(filter);
    // An event that cannot be formatted is no reason to write anywhere else.
    let layer = layer().with_writer(|| writer.clone()).log_internal_errors(false);
    if stderr().is_terminal() {
        registry.with(layer.with_target(false)).init();
    } else {
        registry.with(layer.event_format(JsonLines)).init();
    }
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Shows how many lines were dropped, from the start of the process on.
pub fn count_dropped_in(counter: IntCounter) {
    if let Some(writer) = WRITER.get() {
        writer.count_dropped_in(counter);
    }
}

/// Writes a line for a person to standard error, as it is. A line that cannot be written is no
/// failure: nobody reads it.
pub fn print_line(line: impl Display) {
    let line = format!("{line}\n");
    match WRITER.get() {
        Some(writer) => writer.push(line.as_bytes()),
        None => drop(stderr().write_all(line.as_bytes())),
    }
}

/// A log of lines that are written as they are, to a file of its own or to standard error.
#[derive(Clone)]
pub struct LineLog(Option<LogWriter>);

impl LineLog {
    /// Opens the file, or standard error.
    pub fn open(file: Option<PathBuf>, dropped: IntCounter) -> io::Result<Self> {
        let Some(path) = file else { return Ok(Self(None)) };
        let writer = LogWriter::start(LineFile::open(path)?)?;
        writer.count_dropped_in(dropped);
        Ok(Self(Some(writer)))
    }

    /// Queues one line, which ends with a newline. Never waits.
    pub fn push(&self, line: &[u8]) {
        let writer = self.0.as_ref().or_else(|| WRITER.get());
        writer.iter().for_each(|writer| writer.push(line));
    }

    /// Opens the file again, which may have been moved away.
    pub fn reopen(&self) {
        self.0.iter().for_each(LogWriter::reopen);
    }

    /// Waits until all lines are written, for at most a second.
    pub fn flush(&self) {
        self.0.iter().for_each(LogWriter::flush);
    }
}

/// Waits until all lines are written, for at most a second.
pub fn flush() {
    WRITER.get().iter().for_each(|writer| writer.flush());
}

/// Logs a panic like everything else: the standard library would write to standard error itself,
/// and wait there.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let current = thread::current();
    let thread = current.name().unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or("(no message)");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    if tracing::enabled!(tracing::Level::ERROR) {
        let backtrace = backtrace.map(tracing::field::display);
        tracing::error!(thread, location, backtrace, "panicked at {location}: {message}");
    } else {
        print_line(format_args!("thread `{thread}` panicked at {location}: {message}"));
    }
    // The process ends with its main thread, whatever is queued.
    if thread == "main" {
        flush();
    }
}

/// Reads levels and `target=level` pairs, separated by commas. Ignores invalid ones, and returns a
/// line about each.
fn filter(directives: &str, default: LevelFilter) -> (Targets, Vec<String>) {
    let (mut valid, mut mistakes) = (vec![], vec![]);
    for directive in directives.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        match directive.parse::<Targets>() {
            Ok(_) => valid.push(directive),
            Err(error) => mistakes.push(format!("ignoring `{directive}` in RUST_LOG: {error}")),
        }
    }
    let parsed = valid.join(",").parse().ok().filter(|_| !valid.is_empty());
    let filter = parsed.unwrap_or_else(|| Targets::new().with_default(default));
    (filter, mistakes)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn invalid_directives_are_ignored_and_info_is_the_default() {
        for directives in ["", " , ", "[span]=nonsense", "trunkline=loud"] {
            let (filter, mistakes) = filter(directives, LevelFilter::INFO);
            assert!(filter.would_enable("trunkline", &Level::INFO), "{directives}");
            assert!(!filter.would_enable("trunkline", &Level::DEBUG), "{directives}");
            assert_eq!(mistakes.len(), usize::from(directives.contains('=')), "{mistakes:?}");
        }
        let (some, mistakes) = filter("warn, trunkline::backend=debug,x=loud", LevelFilter::INFO);
        assert!(some.would_enable("trunkline::backend::pool", &Level::DEBUG));
        assert!(!some.would_enable("trunkline::http", &Level::INFO));
        assert!(mistakes[0].starts_with("ignoring `x=loud` in RUST_LOG: "), "{mistakes:?}");
    }
}
