//! What commands print.

use std::io::{ErrorKind, Write, stdout};

/// Prints a text as it is. Whoever reads it may stop doing so, as `head` does: that is no failure.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
