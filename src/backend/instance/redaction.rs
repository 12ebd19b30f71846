//! What a server says, as operators may read it: without the secrets of the tenant that it runs for.

use std::cmp::Reverse;

use crate::config::{Secret, Secrets};

/// A shorter one stands by chance in texts that have nothing to do with it.
const LEN_MIN: usize = 8;
/// What is kept of a story: a server can put as much as it likes into an error.
const STORY_CHARS_MAX: usize = 1000;

/// What is hidden of the words of a server.
#[derive(Debug)]
pub(crate) struct Redaction(Vec<Secret>);

impl Redaction {
    /// Hides what a server was given. Of several lines, such as those of a PEM file, each is hidden for itself: what a server
    /// writes is read line by line.
    pub(crate) fn new(secrets: &Secrets) -> Self {
        let lines = secrets.values().flat_map(|secret| secret.expose().lines()).map(str::trim);
        let long = lines.filter(|line| line.chars().count() >= LEN_MIN);
        let mut hidden: Vec<_> = long.map(|line| Secret::new(line.to_owned())).collect();
        // One may be the beginning of another.
        hidden.sort_by_key(|secret| Reverse(secret.expose().len()));
        Self(hidden)
    }

    /// A text with `[secret]` in the place of each secret.
    pub(crate) fn redact(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| match text.contains(secret.expose()) {
            true => text.replace(secret.expose(), &secret.to_string()),
            false => text,
        })
    }

    /// The same of what may be long: its beginning. Cut afterwards, so that no part of a secret is left.
    pub(crate) fn story(&self, text: String) -> String {
        self.redact(text).chars().take(STORY_CHARS_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction(secrets: &[&str]) -> Redaction {
        let named = secrets.iter().enumerate();
        let secrets = named.map(|(n, it)| (n.to_string(), Secret::new((*it).to_owned())));
        Redaction::new(&secrets.collect())
    }

    #[test]
    fn every_secret_is_hidden_wherever_it_stands() {
        let redaction = redaction(&["sk-live-", "sk-live-é123", "swordfish"]);
        assert_eq!(
            redaction.redact("sk-live-é123swordfish, sk-live-4 sWORDFISH".to_owned()),
            "[secret][secret], [secret]4 sWORDFISH"
        );
    }

    #[test]
    fn of_several_lines_each_is_hidden() {
        let redaction = redaction(&["-----BEGIN-----\r\n  MIIEvQIBADAN\nxyz\n"]);
        assert_eq!(redaction.redact("<MIIEvQIBADAN>".to_owned()), "<[secret]>");
        assert_eq!(redaction.redact("-----BEGIN-----\nxyz".to_owned()), "[secret]\nxyz");
    }

    #[test]
    fn what_is_short_stands_in_other_words_too() {
        assert_eq!(redaction(&["", "1", "timeout"]).redact("1 timeout".to_owned()), "1 timeout");
    }

    #[test]
    fn no_part_of_a_secret_is_left_where_a_story_is_cut_off() {
        let long = format!("{}swordfish", "x".repeat(STORY_CHARS_MAX - 5));
        let story = redaction(&["swordfish"]).story(long);
        assert!(story.ends_with("x[secr"), "{story}");
        assert_eq!(story.len(), STORY_CHARS_MAX);
    }
}
