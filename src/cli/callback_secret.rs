//! `trunkline callback-secret`

use anyhow::bail;
use clap::Subcommand;

use super::output::print;
use super::tenant::must_exist;
use super::{ConfigArgs, CreateArgs, Loaded, actor, load_config, with_store};
use crate::calls::callback::keys::SigningKeyring;
use crate::calls::callback::signature::SigningKey;
use crate::common::ids::TenantName;
use crate::store::{Missing, StoreError};
use crate::telemetry::logging::print_line;

/// After a rotation, receivers have this time to learn the new secret.
const OVERLAP_MS: i64 = 24 * 60 * 60 * 1000;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Make the first secret of a tenant; it is printed once
    Create {
        #[command(flatten)]
        tenant: TenantArgs,
        #[command(flatten)]
        new: CreateArgs,
    },
    /// Make another secret; for a day both sign, so that receivers can change theirs meanwhile
    Rotate {
        #[command(flatten)]
        tenant: TenantArgs,
        /// Stop signing with the old secret at once, such as when others have learned it
        #[arg(long)]
        now: bool,
    },
    /// Remove the secret, so that the tenant's callbacks cannot be sent
    Remove(TenantArgs),
}

#[derive(clap::Args)]
pub(super) struct TenantArgs {
    /// Tenant id
    #[arg(value_name = "TENANT", value_parser = TenantName::parse)]
    id: TenantName,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create { tenant, new } => create(tenant, new.missing()).await,
        Command::Rotate { tenant, now } => rotate(tenant, now).await,
        Command::Remove(tenant) => remove(tenant).await,
    }
}

async fn create(tenant: TenantArgs, missing: Missing) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(tenant.config)?;
    let (id, key) = (tenant.id, SigningKey::generate());
    let sealed = SigningKeyring::new(&config.secrets.keys).seal(&id, &key)?;
    let created = with_store(&config, missing, async |store| {
        must_exist(&id, &config, store).await?;
        match store.add_callback_secret(&actor(), &id, &sealed).await {
            Err(error @ StoreError::AlreadyExists(_)) => {
                bail!("{error}; `trunkline callback-secret rotate {id}` makes another")
            }
            outcome => Ok(outcome?),
        }
    });
    created.await?;
    print(&format!("{}\n", key.expose()))
}

async fn rotate(tenant: TenantArgs, now: bool) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(tenant.config)?;
    let (id, key) = (tenant.id, SigningKey::generate());
    let sealed = SigningKeyring::new(&config.secrets.keys).seal(&id, &key)?;
    let overlap_ms = if now { 0 } else { OVERLAP_MS };
    let rotated = with_store(&config, Missing::Refuse, async |store| {
        match store.rotate_callback_secret(&actor(), &id, &sealed, overlap_ms).await {
            Err(error @ StoreError::NotFound(_)) => {
                bail!("{error}; `trunkline callback-secret create {id}` makes the first")
            }
            outcome => Ok(outcome?),
        }
    });
    rotated.await?;
    print_line(format_args!(
        "{}",
        match now {
            true => "the old secret signs no more",
            false => "the old secret signs, too, for 24 hours",
        }
    ));
    print(&format!("{}\n", key.expose()))
}

async fn remove(tenant: TenantArgs) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(tenant.config)?;
    let id = tenant.id;
    let removed = with_store(&config, Missing::Refuse, async |store| {
        store.remove_callback_secret(&actor(), &id).await
    });
    removed.await?;
    print_line(format_args!("removed the callback secret of tenant `{id}`"));
    Ok(())
}
