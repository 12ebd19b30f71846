//! A file of variables, as `envFile` names it: `NAME=value` lines.

/// Returns the variables, or the number of the first line that is none.
pub(super) fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut variables = vec![];
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').ok_or(number)?;
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(number);
        }
        variables.push((name.to_owned(), value_of(value.trim())));
    }
    Ok(variables)
}

/// Returns a value without its quotes, or without the comment behind it.
fn value_of(text: &str) -> String {
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|rest| rest.split_once(quote));
        if let Some((inner, _)) = inner {
            return match quote {
                '"' => inner.replace("\\n", "\n"),
                _ => inner.to_owned(),
            };
        }
    }
    text.split_once(" #").map_or(text, |(value, _)| value).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stand_one_on_a_line() {
        let text = "# first\nA=1\nexport B = two words # why\nC='x # y'\nD=\"a\\nb\"\n\nE=\n";
        let expected = [("A", "1"), ("B", "two words"), ("C", "x # y"), ("D", "a\nb"), ("E", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse(text), Ok(expected.to_vec()));
        assert_eq!((parse("A=1\nhunter2"), parse("a b=1")), (Err(2), Err(1)));
    }
}
