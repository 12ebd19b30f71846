//! A setting with holes for what only its tenant knows: `Bearer ${secret:TOKEN}`.

use std::collections::BTreeMap;

use super::Secret;

/// What tenants have stored for a server, by name.
pub type Secrets = BTreeMap<String, Secret>;

/// A text that is complete, except for a tenant's secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

/// Part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(Secret),
    Secret(String),
}

/// A secret that the tenant has not stored.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the secret `{0}` is not set")]
pub struct MissingSecret(pub String);

impl Template {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        Self { parts }
    }

    /// A text without holes.
    pub fn plain(text: &str) -> Self {
        Self::new(vec![Part::Text(Secret::new(text.to_owned()))])
    }

    /// The names of the secrets it needs.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Secret(name) => Some(name.as_str()),
        })
    }

    /// The whole text.
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
