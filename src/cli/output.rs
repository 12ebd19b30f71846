//! Prints the output of commands, and formats tables.

use std::io::{ErrorKind, Write, stdout};

/// Prints a text unchanged. A reader that stops early, as `head` does, is no failure.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Formats rows under a header.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut all = vec![header.map(str::to_owned)];
    all.extend(rows);
    align(&all)
}

/// Aligns the columns of all rows.
pub(super) fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("  ").trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["long", "x"], ["ü", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(["A", "B"], rows), "A     B\nlong  x\nü\n");
    }
}
