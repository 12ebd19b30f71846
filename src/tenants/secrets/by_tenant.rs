//! Secrets that tenants give to servers of their own: set, listed and removed in the store, and
//! followed from there.

use std::future::pending;
use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::common::ids::ServerId;
use crate::config::{self, Secret};
use crate::store::{Actor, Follower, Rotated, SecretRecord, Store, StoreError, Subject};
use crate::tenants::secrets::{
    InvalidSecret, Keyring, Label, NAME_LEN_MAX, Resealed, Vault, wanted,
};

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(transparent)]
    Invalid(#[from] InvalidSecret),
    #[error("server `{server}` has no secret `{name}`; {}", has(.names))]
    Unknown { server: String, name: String, names: Vec<String> },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A secret that a server requires, or that is set for it.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SecretView {
    pub server: String,
    pub name: String,
    /// Whether the server's configuration refers to it.
    pub needed: bool,
    pub set: bool,
    pub updated_at: Option<Timestamp>,
}

pub struct TenantSecrets {
    store: Store,
    vault: Arc<Vault>,
}

impl TenantSecrets {
    /// Reads all secrets. Without keys no server can require any, and nothing is read.
    pub async fn open(store: Store, keys: &[Secret]) -> Result<Self, StoreError> {
        let secrets = Self { store, vault: Arc::new(Vault::new(Keyring::new(keys))) };
        secrets.load().await?;
        Ok(secrets)
    }

    pub fn vault(&self) -> &Arc<Vault> {
        &self.vault
    }

    /// Follows the store. Runs for ever.
    pub(crate) async fn follow(&self) {
        if self.vault.keyring().is_empty() {
            return;
        }
        let changes = self.store.changes(Subject::Secrets);
        let mut follower = Follower::new(changes, "tenants' secrets", "known ones stay in use");
        loop {
            follower.changed(pending()).await;
            while follower.retry(self.load().await).await.is_none() {}
        }
    }

    /// Reads the secrets that have changed since they were read, if there may be any.
    pub(in crate::tenants) async fn load(&self) -> Result<(), StoreError> {
        if !self.vault.keyring().is_empty() {
            let changed = self.store.changed_secrets(self.vault.cursor()).await?;
            self.vault.apply(changed);
        }
        Ok(())
    }

    /// Sets a secret that the configured server requires. This replica knows it at once, all others
    /// within two seconds.
    pub async fn set(
        &self,
        actor: &Actor,
        label: Label<'_>,
        server: &config::ServerConfig,
        value: &Secret,
    ) -> Result<SecretView, SecretError> {
        let view = set(&self.store, self.vault.keyring(), actor, label, server, value).await?;
        // If this fails, `follow` reads it later.
        let _ = self.load().await;
        Ok(view)
    }

    pub async fn remove(&self, actor: &Actor, label: Label<'_>) -> Result<(), StoreError> {
        self.store.remove_secret(actor, label).await?;
        let _ = self.load().await;
        Ok(())
    }
}

/// Sets a secret in the store, without a gateway.
pub async fn set(
    store: &Store,
    keyring: &Keyring,
    actor: &Actor,
    label: Label<'_>,
    server: &config::ServerConfig,
    value: &Secret,
) -> Result<SecretView, SecretError> {
    let Label { server: id, name, .. } = label;
    let names = wanted(server);
    if !names.iter().any(|wanted| wanted == name) {
        let name = name.chars().take(NAME_LEN_MAX).collect();
        return Err(SecretError::Unknown { server: id.to_string(), name, names });
    }
    let sealed = keyring.seal(label, value)?;
    let updated = store.set_secret(actor, label, &sealed).await?;
    let record = SecretRecord { server: id.clone(), name: name.to_owned(), updated };
    Ok(SecretView::of(&record, true))
}

/// Seals all secrets with the first key. Returns the counts, and the secrets that no key opens.
pub async fn rotate(
    store: &Store,
    keyring: &Keyring,
    actor: &Actor,
) -> Result<(Rotated, Vec<String>), SecretError> {
    if keyring.is_empty() {
        return Err(InvalidSecret::NoKeys.into());
    }
    let mut unreadable = vec![];
    let reseal = |label: Label<'_>, sealed: &str| match keyring.reseal(label, sealed) {
        Resealed::Anew(sealed) => Some(sealed),
        Resealed::Already => None,
        Resealed::Unreadable => {
            unreadable.push(label.to_string());
            None
        }
    };
    let rotated = store.rotate_secrets(actor, reseal).await?;
    Ok((rotated, unreadable))
}

/// Returns the secrets that a server requires or that are set for it, by name. A server that is not
/// configured requires none.
pub fn views(
    id: &ServerId,
    server: Option<&config::ServerConfig>,
    records: &[SecretRecord],
) -> Vec<SecretView> {
    let wanted = server.map(wanted).unwrap_or_default();
    let of_server = records.iter().filter(|record| record.server == *id);
    let mut views: Vec<_> =
        of_server.map(|record| SecretView::of(record, wanted.contains(&record.name))).collect();
    for name in wanted {
        if !views.iter().any(|view| view.name == name) {
            let server = id.to_string();
            views.push(SecretView { server, name, needed: true, set: false, updated_at: None });
        }
    }
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

impl SecretView {
    fn of(record: &SecretRecord, needed: bool) -> Self {
        Self {
            server: record.server.to_string(),
            name: record.name.clone(),
            needed,
            set: true,
            updated_at: Timestamp::from_millisecond(record.updated).ok(),
        }
    }
}

fn has(names: &[String]) -> String {
    if names.is_empty() {
        "it has none".to_owned()
    } else {
        format!("it has `{}`", names.join("`, `"))
    }
}
