//! Prints the output of commands, and formats tables.

use std::io::{ErrorKind, IsTerminal, Write, stdout};

use rustix::termios::tcgetwinsize;
use serde_json::Value;

/// Narrower terminals break lines, as no table could be read there.
const WIDTH_MIN: usize = 80;

/// Prints a text unchanged. A reader that stops early, as `head` does, is no failure.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a table. On a terminal, lines that are too long lose their end.
pub(super) fn print_table(table: &str) -> anyhow::Result<()> {
    let size = stdout().is_terminal().then(|| tcgetwinsize(stdout()).ok()).flatten();
    match size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0) {
        Some(columns) => print(&cut(table, columns.max(WIDTH_MIN))),
        None => print(table),
    }
}

/// Prints JSON without the characters that could deceive a reader at a terminal. Only strings have
/// them.
pub(super) fn print_json(json: &Value) -> anyhow::Result<()> {
    let mut text = String::new();
    for c in format!("{json:#}\n").chars() {
        if c.is_ascii() {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    print(&text)
}

/// Formats rows under a header.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    table_of_numbers(header, N, rows)
}

/// Formats rows under a header; all columns from `first_number` on are flush right.
pub(super) fn table_of_numbers<const N: usize>(
    header: [&str; N],
    first_number: usize,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut all = vec![header.map(str::to_owned)];
    all.extend(rows);
    lay_out(&all, first_number)
}

/// Aligns the columns of all rows.
pub(super) fn align<const N: usize>(rows: &[[String; N]]) -> String {
    lay_out(rows, N)
}

fn lay_out<const N: usize>(rows: &[[String; N]], first_number: usize) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(column, (cell, width)): (usize, (&String, &usize))| match column {
            column if column >= first_number => format!("{cell:>width$}"),
            _ => format!("{cell:width$}"),
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        text += cells.join("  ").trim_end();
        text += "\n";
    }
    text
}

fn cut(text: &str, columns: usize) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.lines() {
        match line.char_indices().nth(columns) {
            Some(_) => {
                shown.extend(line.chars().take(columns - 1));
                shown.push('…');
            }
            None => shown += line,
        }
        shown.push('\n');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["long", "x"], ["ü", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(["A", "B"], rows), "A     B\nlong  x\nü\n");
        let rows = [["a", "1"], ["b", "200"]].map(|row| row.map(str::to_owned));
        assert_eq!(table_of_numbers(["A", "N"], 1, rows), "A    N\na    1\nb  200\n");
    }

    #[test]
    fn a_line_that_is_too_long_says_so() {
        assert_eq!(cut("abcd\nabcde\n", 4), "abcd\nabc…\n");
        assert_eq!(cut("äöü\n", 2), "ä…\n");
    }
}
