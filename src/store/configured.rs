//! Opens the store that the configuration names.
//!
//! The gateway and all commands with its configuration use one store. Only the gateway makes a
//! store unasked: a command that made an empty one elsewhere would report success, and the gateway
//! would not see the change.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::open::{self, URL_HINT};
use super::{Result, Store, StoreError};
use crate::config::{Config, StateDir, StoreConfig};

/// Says what happens if there is no store yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Create,
    Refuse,
}

/// The store cannot be opened, since it is not there.
#[derive(Debug, thiserror::Error)]
pub enum NoStore {
    /// Nobody has made the store yet.
    #[error(
        "the store does not exist yet: {0}. A command makes none unasked, since the gateway may \
         use another one, which `--config` or `[store] url` names. To make this one, run \
         `trunkline serve`, or give `tenant add`, `key create` or `secret set` the option \
         `--create`"
    )]
    Missing(String),
    /// The file of a relative path is elsewhere than versions before this one had it.
    #[error(
        "the store's file {now} does not exist, but {earlier} does, which earlier versions used \
         here. Stop the gateways that use it, then move it there with its `-wal` and `-shm` \
         files. Or name it, in `[store] url` or TRUNKLINE_STORE__URL: {earlier_url}"
    )]
    Moved { now: String, earlier: String, earlier_url: String },
    /// The user has no home directory.
    #[error(
        "there is no directory for the store: neither XDG_STATE_HOME nor HOME is an absolute \
         path. Set `[store] url` or TRUNKLINE_STORE__URL, such as \
         sqlite:///var/lib/trunkline/trunkline.db"
    )]
    NoStateDir,
}

impl Store {
    /// Opens the store of a configuration.
    pub async fn configured(config: &Config, missing: Missing) -> Result<Self> {
        match &config.store.state_dir {
            Some(StateDir::Unknown) => return Err(NoStore::NoStateDir.into()),
            Some(StateDir::At(dir)) if missing == Missing::Create => create_state_dir(dir)?,
            Some(StateDir::At(_)) | None => {}
        }
        refuse_moved(&config.store)?;
        Self::open_or(missing, &config.store.url, config.auth.hash_key.as_ref()).await
    }
}

/// Refuses a new file while one of earlier versions is in the working directory. An empty store
/// beside it would refuse every key, and nothing would ever mention the old file again.
fn refuse_moved(store: &StoreConfig) -> Result<()> {
    let Some(earlier_url) = &store.earlier_url else { return Ok(()) };
    let (now, earlier) = (open::path(store.url.expose())?, open::path(earlier_url.expose())?);
    if now.exists() || !earlier.is_file() {
        return Ok(());
    }
    let [now, earlier] = [now, earlier].map(|path| path.display().to_string());
    Err(NoStore::Moved { now, earlier, earlier_url: earlier_url.expose().to_owned() }.into())
}

/// Creates the user's state directory for the store, readable by the user alone.
fn create_state_dir(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| {
        let cause = format!("cannot create the directory {}: {error}", dir.display());
        StoreError::Unavailable(format!("{cause}; {URL_HINT}"))
    })
}
