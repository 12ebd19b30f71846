//! Removes the secrets of a tenant from a server's words, before operators read them.

use std::cmp::Reverse;

use crate::config::{Secret, Secrets};

/// Shorter secrets occur by chance in unrelated texts.
const LEN_MIN: usize = 8;
/// A server can put as much as it likes into an error.
const EXCERPT_CHARS_MAX: usize = 1000;

#[derive(Debug)]
pub(crate) struct Redaction(Vec<Secret>);

impl Redaction {
    /// Hides each line of each secret, such as a PEM file: a server's output is read line by line.
    pub(crate) fn new(secrets: &Secrets) -> Self {
        let lines = secrets.values().flat_map(|secret| secret.expose().lines()).map(str::trim);
        let long = lines.filter(|line| line.chars().count() >= LEN_MIN);
        let mut hidden: Vec<_> = long.map(|line| Secret::new(line.to_owned())).collect();
        // One may be the beginning of another.
        hidden.sort_by_key(|secret| Reverse(secret.expose().len()));
        Self(hidden)
    }

    /// Replaces each secret by `[secret]`.
    pub(crate) fn redact(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| match text.contains(secret.expose()) {
            true => text.replace(secret.expose(), &secret.to_string()),
            false => text,
        })
    }

    /// Returns the redacted beginning of a text. It is cut last, so that no part of a secret is
    /// left.
    pub(crate) fn excerpt(&self, text: String) -> String {
        self.redact(text).chars().take(EXCERPT_CHARS_MAX).collect()
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
    fn no_part_of_a_secret_is_left_where_an_excerpt_is_cut_off() {
        let long = format!("{}swordfish", "x".repeat(EXCERPT_CHARS_MAX - 5));
        let excerpt = redaction(&["swordfish"]).excerpt(long);
        assert!(excerpt.ends_with("x[secr"), "{excerpt}");
        assert_eq!(excerpt.len(), EXCERPT_CHARS_MAX);
    }
}
