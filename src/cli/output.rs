//! Prints the output of commands.

use std::io::{ErrorKind, Write, stdout};

/// Prints a text unchanged. A reader that stops early, as `head` does, is no failure.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
