//! Makes ids of the names that clients give their servers.

use crate::common::ids::ServerId;

/// The longest id of a server.
const ID_LEN_MAX: usize = 32;

/// Returns the id that is closest to a name and is not taken.
pub(super) fn id_of(name: &str, is_taken: impl Fn(&ServerId) -> bool) -> ServerId {
    let plain = plain(name);
    let numbered = (2..).map(|number: u32| {
        let number = format!("-{number}");
        let kept = plain.len().min(ID_LEN_MAX - number.len());
        format!("{}{number}", plain[..kept].trim_end_matches(['-', '_']))
    });
    std::iter::once(plain.clone())
        .chain(numbered)
        .filter_map(|text| ServerId::parse(&text).ok())
        .find(|id| !is_taken(id))
        .expect("a file has fewer servers than there are numbers")
}

/// Replaces what an id cannot have by hyphens.
fn plain(name: &str) -> String {
    if ServerId::parse(name).is_ok() {
        return name.to_owned();
    }
    let mut plain = String::new();
    for c in name.chars() {
        let c = if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        // An id begins with a letter or digit, and has neither `--` nor `__` of ours.
        if c.is_ascii_alphanumeric() || !plain.is_empty() && !plain.ends_with(['-', '_']) {
            plain.push(c);
        }
    }
    plain.truncate(ID_LEN_MAX);
    let plain = plain.trim_end_matches(['-', '_']);
    if plain.is_empty() { "server".to_owned() } else { plain.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_ids() {
        for (name, id) in [
            ("files", "files"),
            ("a--b", "a--b"),
            ("GitHub Copilot", "GitHub-Copilot"),
            ("io.github.x/y", "io-github-x-y"),
            ("a__b", "a_b"),
            ("_x_", "x"),
            ("日本", "server"),
            ("", "server"),
            (&"long ".repeat(10), "long-long-long-long-long-long-lo"),
        ] {
            assert_eq!(id_of(name, |_| false).as_str(), id, "{name}");
        }
    }

    #[test]
    fn an_id_that_is_taken_gets_a_number() {
        let taken = |id: &ServerId| ["a-b", "a-b-2"].contains(&id.as_str());
        assert_eq!(id_of("a b", taken).as_str(), "a-b-3");
        let long = "x".repeat(32);
        let id = id_of(&long, |id| id.as_str() == long);
        assert_eq!(id.as_str(), format!("{}-2", "x".repeat(30)));
    }
}
