//! Texts that are never printed, and the references that stand for them in files.

use std::collections::BTreeMap;
use std::fs;

use reqwest::header::HeaderValue;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::Sources;
use super::kind::{self, Kind};
use super::tree::Node;
use crate::common::secret::Secret;

/// A shorter key could be guessed.
const KEY_LEN_MIN: usize = 32;
/// Enough to replace keys one by one. Every key is tried on a token that none of them sealed.
const KEYS_MAX: usize = 8;

/// Secrets that a tenant has stored for a server, by name.
pub type Secrets = BTreeMap<String, Secret>;

/// A text that is complete, except for a tenant's secrets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
enum Part {
    Text(Secret),
    Secret(String),
}

/// A secret that the tenant has not stored.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the secret `{0}` is not set")]
pub struct MissingSecret(pub String);

impl Template {
    /// Returns the form that serde reads, secrets included.
    fn to_json(&self) -> Json {
        let part = |part: &Part| match part {
            Part::Text(text) => json!({ "Text": text.expose() }),
            Part::Secret(name) => json!({ "Secret": name }),
        };
        self.parts.iter().map(part).collect()
    }

    /// Makes a template that needs no secret.
    pub fn plain(text: &str) -> Self {
        Self { parts: vec![Part::Text(Secret::new(text.to_owned()))] }
    }

    /// Returns the names of the secrets that it needs.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Secret(name) => Some(name.as_str()),
        })
    }

    /// Returns the complete text.
    pub fn fill(&self, secrets: &Secrets) -> Result<Secret, MissingSecret> {
        let mut text = String::new();
        for part in &self.parts {
            let part = match part {
                Part::Text(text) => text,
                Part::Secret(name) => {
                    secrets.get(name).ok_or_else(|| MissingSecret(name.clone()))?
                }
            };
            text.push_str(part.expose());
        }
        Ok(Secret::new(text))
    }
}

pub(super) const KEY: Kind = Kind::Value(
    "a text of at least 32 characters, as `openssl rand -base64 32` prints",
    |node, sources| key(&node, sources).map_err(|what| format!("it {what}")),
);

pub(super) const KEYS: Kind = Kind::Value(
    "a list of at most 8 texts of at least 32 characters, as `openssl rand -base64 32` prints",
    |node, sources| match kind::list(node, |item| key(item, sources))? {
        Json::Array(keys) if keys.len() > KEYS_MAX => Err(format!("it has {}", keys.len())),
        keys => Ok(keys),
    },
);

/// A text that is not shown, of any length.
pub(super) const PRIVATE_TEXT: Kind = Kind::Value(
    "a text that is not empty, perhaps `${NAME}` or `${file:/path}`",
    |node, sources| {
        let text = node.text_or_kind().and_then(|text| expand(text, sources));
        match text.map_err(|what| format!("it {what}"))?.expose() {
            "" => Err("it is empty".to_owned()),
            text => Ok(text.into()),
        }
    },
);

pub(super) const STORE_URL: Kind = Kind::Value(
    "a URL such as \"sqlite://trunkline.db\" or \"postgres://user:password@host/database\"",
    |node, sources| url(&node, sources, &["sqlite:", "postgres:", "postgresql:"]),
);

pub(super) const CACHE_URL: Kind =
    Kind::Value("a URL such as \"redis://127.0.0.1:6379\"", |node, sources| {
        url(&node, sources, &["redis:", "rediss:", "valkey:", "valkeys:", "unix:"])
    });

const TEMPLATE_ALLOWED: &str =
    "a text, perhaps with `${NAME}`, `${file:/path}` or `${secret:NAME}`";

/// The value of a variable.
pub(super) const TEMPLATE: Kind =
    Kind::Value(TEMPLATE_ALLOWED, |node, sources| Ok(template_of(&node, sources)?.to_json()));

pub(super) const HEADER: Kind = Kind::Value(TEMPLATE_ALLOWED, |node, sources| {
    let template = template_of(&node, sources)?;
    let nothing = |name: &str| (name.to_owned(), Secret::new(String::new()));
    let text = template.fill(&template.secrets().map(nothing).collect());
    match text.is_ok_and(|text| HeaderValue::from_str(text.expose()).is_ok()) {
        true => Ok(template.to_json()),
        false => Err("it has characters that no header can have".to_owned()),
    }
});

fn template_of(node: &Node, sources: &Sources) -> Result<Template, String> {
    let template = node.text_or_kind().and_then(|text| template(text, sources));
    template.map_err(|what| format!("it {what}"))
}

fn key(node: &Node, sources: &Sources) -> Result<Json, String> {
    let key = expand(node.text_or_kind()?, sources)?;
    let key = key.expose().trim_end_matches(['\n', '\r']);
    match key.chars().count() {
        KEY_LEN_MIN.. => Ok(key.into()),
        len => Err(format!("has {len} characters")),
    }
}

/// Reads the address of a database, which may contain a password.
fn url(node: &Node, sources: &Sources, schemes: &[&str]) -> Result<Json, String> {
    let url = node.text_or_kind().and_then(|text| expand(text, sources));
    let url = url.map_err(|what| format!("it {what}"))?;
    if schemes.iter().any(|scheme| url.expose().starts_with(scheme)) {
        return Ok(url.expose().into());
    }
    Err(format!("it begins with none of `{}`", schemes.join("`, `")))
}

/// Replaces `${NAME}` and `${file:/path}`; `$${` is a plain `${`.
///
/// An error is a verb and its object, without any part of the text but the name of a reference.
pub(super) fn expand(text: &str, sources: &Sources) -> Result<Secret, String> {
    template(text, sources)?.fill(&Secrets::new()).map_err(|MissingSecret(name)| {
        format!("refers to the tenants' secret `{name}`, which only `env` and `headers` can")
    })
}

/// Expands a text, except for `${secret:NAME}`.
fn template(text: &str, sources: &Sources) -> Result<Template, String> {
    let (mut parts, mut plain) = (vec![], String::new());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            plain.push_str(before);
            plain.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        plain.push_str(&rest[..at]);
        let Some((reference, after)) = rest[at + 2..].split_once('}') else {
            return Err("has `${` without `}`; write `$${` for a plain `${`".to_owned());
        };
        match reference.strip_prefix("secret:") {
            Some(name) if is_variable_name(name) => {
                parts.push(Part::Text(Secret::new(std::mem::take(&mut plain))));
                parts.push(Part::Secret(name.to_owned()));
            }
            _ => plain.push_str(&resolve(reference, sources)?),
        }
        rest = after;
    }
    plain.push_str(rest);
    parts.push(Part::Text(Secret::new(plain)));
    let has_zero = |part: &Part| matches!(part, Part::Text(text) if text.expose().contains('\0'));
    if parts.iter().any(has_zero) {
        return Err("contains a zero byte".to_owned());
    }
    Ok(Template { parts })
}

fn resolve(reference: &str, sources: &Sources) -> Result<String, String> {
    if let Some(path) = reference.strip_prefix("file:") {
        let content = fs::read_to_string(sources.working_dir.join(path)).map_err(|error| {
            format!("refers to the file `{path}`, which cannot be read: {error}")
        })?;
        // Editors and `echo` end a file with a line break that is not part of the secret.
        let trimmed = content.strip_suffix('\n').unwrap_or(&content);
        return Ok(trimmed.strip_suffix('\r').unwrap_or(trimmed).to_owned());
    }
    // A text that is no name may be part of a password, and is not repeated.
    if !is_variable_name(reference) {
        return Err("has `${` without a variable's name, `file:/path` or `secret:NAME`; \
             write `$${` for a plain `${`"
            .to_owned());
    }
    sources
        .env
        .iter()
        .find(|(name, _)| name == reference)
        .map(|(_, value)| value.clone())
        .ok_or_else(|| {
            format!("refers to the environment variable `{reference}`, which is not set")
        })
}

pub(super) fn is_variable_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let env = vec![("TOKEN".to_owned(), "hunter2 ${NOT_AGAIN}".to_owned())];
        let sources = Sources { env, working_dir: "/".into(), ..Sources::default() };
        expand(text, &sources).map(|secret| secret.expose().to_owned())
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::new("hunter2".to_owned());
        assert_eq!(format!("{secret} {secret:?}"), "[secret] [secret]");
    }

    #[test]
    fn variables_are_put_in_once() {
        assert_eq!(expanded("plain $5 }{"), Ok("plain $5 }{".to_owned()));
        assert_eq!(expanded("<${TOKEN}>"), Ok("<hunter2 ${NOT_AGAIN}>".to_owned()));
    }

    #[test]
    fn two_dollars_make_a_plain_one() {
        assert_eq!(expanded("$${TOKEN}"), Ok("${TOKEN}".to_owned()));
        assert_eq!(expanded("$${a}${TOKEN}$"), Ok("${a}hunter2 ${NOT_AGAIN}$".to_owned()));
    }

    #[test]
    fn a_file_loses_one_line_break() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let reference = format!("${{file:{}}}", path.display());
        for (content, value) in [("k\n", "k"), ("k\n\n", "k\n"), ("k\r\n", "k"), ("k", "k")] {
            fs::write(&path, content).unwrap();
            assert_eq!(expanded(&reference), Ok(value.to_owned()));
        }
        let error = expanded("${file:/no/such/key}").unwrap_err();
        assert!(error.contains("`/no/such/key`"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(expanded("x${GONE}").unwrap_err().contains("`GONE`, which is not set"));
    }

    #[test]
    fn errors_repeat_nothing_that_could_be_a_password() {
        for text in ["hunter2${", "${hunter2!}", "${}hunter2", "hunter2${a:-hunter2}", "hunter2\0"]
        {
            let error = expanded(text).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
