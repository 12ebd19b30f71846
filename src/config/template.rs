//! A setting that a secret of the tenant completes: `Bearer ${secret:TOKEN}`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::Secret;

/// Secrets that a tenant has stored for a server, by name.
pub type Secrets = BTreeMap<String, Secret>;

/// A text that is complete, except for a tenant's secrets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
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

    /// Returns the form that serde reads, secrets included.
    pub(super) fn to_json(&self) -> Json {
        let part = |part: &Part| match part {
            Part::Text(text) => json!({ "Text": text.expose() }),
            Part::Secret(name) => json!({ "Secret": name }),
        };
        self.parts.iter().map(part).collect()
    }

    /// Makes a template that needs no secret.
    pub fn plain(text: &str) -> Self {
        Self::new(vec![Part::Text(Secret::new(text.to_owned()))])
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
