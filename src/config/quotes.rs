//! Recognises the most frequent mistake in TOML: a text without quotes.

use toml::de::DeValue;

/// A line of a text, counted from 1.
pub(super) struct LineOf<'a> {
    pub(super) number: usize,
    pub(super) text: &'a str,
}

/// Returns the line of a byte.
pub(super) fn line_at(text: &str, offset: usize) -> LineOf<'_> {
    let offset = text.floor_char_boundary(offset);
    let begin = text[..offset].rfind('\n').map_or(0, |at| at + 1);
    let end = text[begin..].find('\n').map_or(text.len(), |at| begin + at);
    let number = text[..begin].matches('\n').count() + 1;
    LineOf { number, text: &text[begin..end] }
}

/// Says which setting of a line lacks its quotes. Never repeats its value, which may be secret.
pub(super) fn missing(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\'');
    if key.is_empty() || !key.chars().all(is_key) || DeValue::parse(value).is_ok() {
        return None;
    }
    let is_list = value.starts_with('[') && value.ends_with(']');
    let begins_text = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '~' | '-' | '$');
    if value.contains(['"', '\'']) || !(is_list || value.starts_with(begins_text)) {
        return None;
    }
    Some(match is_list {
        true => format!("each text of a list needs quotes: write `{key} = [\"…\", \"…\"]`"),
        false => format!("a text needs quotes: write `{key} = \"…\"`"),
    })
}

/// Returns a line that lacks its quotes with them.
pub(super) fn added(line: &str) -> Option<String> {
    missing(line)?;
    let (key, value) = line.split_once('=')?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    let quoted = |text: &str| format!("'{}'", text.trim());
    let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let value = match list {
        Some(items) => {
            let items = items.split(',').filter(|item| !item.trim().is_empty());
            format!("[{}]", items.map(quoted).collect::<Vec<_>>().join(", "))
        }
        None => quoted(value),
    };
    Some(format!("{key}= {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_quotes_are_recognised() {
        let told = |line| missing(line).unwrap_or_default();
        assert_eq!(told("command = npx"), "a text needs quotes: write `command = \"…\"`");
        for line in ["timeout = 30s", "cwd=/srv/x", "env.K = hunter2", "a = ~/x # why"] {
            let text = told(line);
            assert!(text.starts_with("a text needs quotes") && !text.contains("hunter2"), "{line}");
        }
        let list = "each text of a list needs quotes: write `args = [\"…\", \"…\"]`";
        assert_eq!(told("args = [-y, x]"), list);
        for line in ["a = 1", "a = true", "a = \"x", "a", "[servers", "a = {", "= x", "a = ["] {
            assert_eq!(told(line), "", "{line}");
        }
    }

    #[test]
    fn missing_quotes_are_added() {
        for (line, expected) in [
            ("command = npx", "command = 'npx'"),
            ("cwd=/srv/x # why", "cwd= '/srv/x'"),
            ("args = [-y, x,]", "args = ['-y', 'x']"),
        ] {
            assert_eq!(added(line).as_deref(), Some(expected));
        }
        assert_eq!(added("a = 1"), None);
    }
}
