//! Values that nobody may see but those they are for, and the references that stand for them in files.

use std::fmt;
use std::fs;
use std::path::Path;

use super::template::{MissingSecret, Part, Secrets, Template};
use super::tree::Node;
use super::values;

/// Shorter ones could be guessed by trying.
const KEY_LEN_MIN: usize = 32;
/// Enough to replace keys at leisure; each is tried on a token that fits none.
const KEYS_MAX: usize = 8;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, to be given to the one it is for and to nobody else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Puts in what `${NAME}` and `${file:/path}` stand for; `$${` is a plain `${`. Errors continue the
/// sentence that begins with the key, and show no part of the text except a reference's name.
pub(super) fn expand(
    text: &str,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<Secret, String> {
    let template = template(text, env, working_dir)?;
    template.fill(&Secrets::new()).map_err(|MissingSecret(name)| {
        format!(
            "refers to the tenants' secret `{name}`, which only `env` and `headers` of servers can"
        )
    })
}

/// The same, and leaves holes for what `${secret:NAME}` stands for.
pub(super) fn template(
    text: &str,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<Template, String> {
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
                parts.push(Part::Text(Secret(std::mem::take(&mut plain))));
                parts.push(Part::Secret(name.to_owned()));
            }
            _ => plain.push_str(&resolve(reference, env, working_dir)?),
        }
        rest = after;
    }
    plain.push_str(rest);
    parts.push(Part::Text(Secret(plain)));
    let has_zero = |part: &Part| matches!(part, Part::Text(text) if text.0.contains('\0'));
    if parts.iter().any(has_zero) {
        return Err("contains a zero byte, which is not allowed".to_owned());
    }
    Ok(Template::new(parts))
}

/// The settings `session_keys` and `secrets.keys`. Errors show no key.
pub(super) fn keys(
    node: Node,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<Vec<Secret>, String> {
    let texts = values::texts(node, "${file:/run/secrets/key}")?;
    if texts.len() > KEYS_MAX {
        return Err(format!("must be at most {KEYS_MAX} keys, and they are {}", texts.len()));
    }
    let key = |(index, text): (usize, String)| {
        long_enough(&text, env, working_dir)
            .map_err(|problem| format!("(item {}) {problem}", index + 1))
    };
    texts.into_iter().enumerate().map(key).collect()
}

/// A single key. Errors do not show it.
pub(super) fn key(
    node: Node,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<Secret, String> {
    let text = node.text().ok_or_else(|| format!("must be a text, and it is {}", node.kind()))?;
    long_enough(text, env, working_dir)
}

fn long_enough(text: &str, env: &[(String, String)], working_dir: &Path) -> Result<Secret, String> {
    let key = expand(text, env, working_dir)?;
    let key = key.expose().trim_end_matches(['\n', '\r']);
    match key.chars().count() {
        KEY_LEN_MIN.. => Ok(Secret::new(key.to_owned())),
        len => Err(format!(
            "must have at least {KEY_LEN_MIN} characters, such as those that \
             `openssl rand -base64 32` prints, and it has {len}"
        )),
    }
}

/// The address of a database. Errors do not show it: it may contain a password.
pub(super) fn store_url(
    node: Node,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<Secret, String> {
    let schemes = ["sqlite:", "postgres:", "postgresql:"];
    let example = "\"sqlite://trunkline.db\" or \"postgres://user:password@host/database\"";
    url(node, env, working_dir, &schemes, example)
}

/// The address of a Valkey or Redis server.
pub(super) fn cache_url(
    node: Node,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<Secret, String> {
    let schemes = ["redis:", "rediss:", "valkey:", "valkeys:", "unix:"];
    url(node, env, working_dir, &schemes, "\"redis://127.0.0.1:6379\"")
}

fn url(
    node: Node,
    env: &[(String, String)],
    working_dir: &Path,
    schemes: &[&str],
    example: &str,
) -> Result<Secret, String> {
    let text = node.text().unwrap_or_default();
    let url = expand(text, env, working_dir)?;
    if schemes.iter().any(|scheme| url.expose().starts_with(scheme)) {
        return Ok(url);
    }
    Err(format!("must be a URL such as {example}"))
}

fn resolve(
    reference: &str,
    env: &[(String, String)],
    working_dir: &Path,
) -> Result<String, String> {
    if let Some(path) = reference.strip_prefix("file:") {
        let content = fs::read_to_string(working_dir.join(path)).map_err(|error| {
            format!("refers to the file `{path}`, which cannot be read: {error}")
        })?;
        // Editors and `echo` end a file with a line break that is not part of the secret.
        let trimmed = content.strip_suffix('\n').unwrap_or(&content);
        return Ok(trimmed.strip_suffix('\r').unwrap_or(trimmed).to_owned());
    }
    // What is no name may be part of a password, and is not repeated.
    if !is_variable_name(reference) {
        return Err(
            "has `${` without a variable's name, `file:/path` or `secret:NAME`; write `$${` for a plain `${`"
                .to_owned(),
        );
    }
    env.iter().find(|(name, _)| name == reference).map(|(_, value)| value.clone()).ok_or_else(
        || format!("refers to the environment variable `{reference}`, which is not set"),
    )
}

fn is_variable_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let env = [("TOKEN".to_owned(), "hunter2 ${NOT_AGAIN}".to_owned())];
        expand(text, &env, Path::new("/")).map(|secret| secret.expose().to_owned())
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
