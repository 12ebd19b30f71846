//! Splits a definition into lines for people to read. Definitions come from servers that may want
//! to deceive: characters that a terminal would obey, or not show, are escaped.

/// The deepest indentation. Otherwise many brackets would become a lot of whitespace.
const INDENT_MAX: usize = 32;

/// Returns the lines of a definition. Strings are also broken after `\n`.
pub(super) fn lines(canonical: &str) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    let mut depth = 0_usize;
    let mut chars = canonical.chars().peekable();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        if !in_string && c.is_ascii_whitespace() {
            continue;
        }
        let opens = !in_string && matches!(c, '{' | '[');
        let closes = !in_string && matches!(c, '}' | ']');
        if closes {
            depth = depth.saturating_sub(1);
            if !line.ends_with(['{', '[']) {
                end_line(&mut lines, &mut line, depth);
            }
        }
        push(&mut line, c);
        match c {
            '"' => in_string = !in_string,
            '\\' if in_string => {
                let escaped = chars.next();
                escaped.into_iter().for_each(|c| push(&mut line, c));
                if escaped == Some('n') && chars.peek() != Some(&'"') {
                    end_line(&mut lines, &mut line, depth + 1);
                }
            }
            ':' if !in_string => line.push(' '),
            ',' if !in_string => end_line(&mut lines, &mut line, depth),
            _ => {}
        }
        if opens {
            depth += 1;
            if !matches!(chars.peek(), Some('}' | ']')) {
                end_line(&mut lines, &mut line, depth);
            }
        }
    }
    if !line.trim().is_empty() {
        lines.push(line);
    }
    lines
}

fn end_line(lines: &mut Vec<String>, line: &mut String, depth: usize) {
    lines.push(std::mem::take(line));
    line.push_str(&"  ".repeat(depth.min(INDENT_MAX)));
}

/// Escapes characters that a terminal would obey, or not show.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|c| push(&mut shown, c));
    shown
}

fn push(shown: &mut String, c: char) {
    match c {
        '"' | '\'' | '\\' => shown.push(c),
        _ => shown.extend(c.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_definition_is_laid_out() {
        let text = r#"{"a":{},"b":[],"d":"one\ntwo: {\"x\"}\n","l":[1,{"x":null}]}"#;
        let expected = [
            "{",
            "  \"a\": {},",
            "  \"b\": [],",
            "  \"d\": \"one\\n",
            "    two: {\\\"x\\\"}\\n\",",
            "  \"l\": [",
            "    1,",
            "    {",
            "      \"x\": null",
            "    }",
            "  ]",
            "}",
        ];
        assert_eq!(lines(text), expected);
    }

    #[test]
    fn hidden_characters_are_escaped() {
        // Escape, delete, control sequence introducer, right-to-left override, zero width space, a
        // tag.
        let hidden = "\u{1b}[2K\u{7f}\u{9b}\u{202e}\u{200b}\u{e0041}\r";
        assert_eq!(printable(hidden), "\\u{1b}[2K\\u{7f}\\u{9b}\\u{202e}\\u{200b}\\u{e0041}\\r");
        assert_eq!(printable("naïve \"日本\" \\n '"), "naïve \"日本\" \\n '");
    }

    #[test]
    fn indentation_is_bounded() {
        let text = format!("{}1{}", "[".repeat(30_000), "]".repeat(30_000));
        let len: usize = lines(&text).iter().map(String::len).sum();
        assert!(len < 60_001 * (2 * INDENT_MAX + 2), "{len}");
    }

    proptest! {
        #[test]
        fn no_line_has_a_character_that_a_terminal_obeys(
           text in "\\PC*|[\\x00-\\x1f\"\\\\{}\\[\\],:\u{80}-\u{9f}\u{202a}-\u{202e}]*"
        ) {
            for line in lines(&text) {
                prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
                prop_assert!(!line.contains(['\u{202a}', '\u{202e}']), "{:?}", line);
            }
        }
    }
}
