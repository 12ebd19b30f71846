//! `trunkline secret`

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read, stdin};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::output::{print, table};
use super::tenant::must_exist;
use super::{ConfigArgs, CreateArgs, Loaded, actor, load_config, with_store};
use crate::calls::callback::keys::SigningKeyring;
use crate::common::ids::{ServerId, TenantId, TenantName};
use crate::config::Secret;
use crate::store::Missing;
use crate::telemetry::logging::print_line;
use crate::tenants::connections::ConnectionKeyring;
use crate::tenants::secrets::{Keyring, Label, Resealed, VALUE_LEN_MAX, by_tenant};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Set a secret to the text on standard input, without its last line break
    Set {
        #[command(flatten)]
        secret: SecretArgs,
        #[command(flatten)]
        new: CreateArgs,
    },
    /// List the secrets that servers need and whether each is set; values are never shown
    List {
        /// Tenant id
        #[arg(value_parser = TenantName::parse)]
        tenant: TenantName,
        /// Only this server
        #[arg(value_parser = ServerId::parse)]
        server: Option<ServerId>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Remove a secret
    Remove(SecretArgs),
    /// Encrypt all secrets again with the first of `[secrets] keys`, so that old keys can go
    Rotate(ConfigArgs),
}

#[derive(clap::Args)]
pub(super) struct SecretArgs {
    /// Tenant id
    #[arg(value_parser = TenantName::parse)]
    tenant: TenantName,
    /// Server id
    #[arg(value_parser = ServerId::parse)]
    server: ServerId,
    /// Secret name, as in `${secret:NAME}`
    name: String,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Set { secret, new } => set(secret, new.missing()).await,
        Command::List { tenant, server, json, config } => list(tenant, server, json, config).await,
        Command::Remove(secret) => remove(secret).await,
        Command::Rotate(config) => rotate(config).await,
    }
}

async fn set(args: SecretArgs, missing: Missing) -> anyhow::Result<()> {
    let SecretArgs { tenant, server, name, config } = args;
    let Loaded { config, .. } = load_config(config)?;
    let Some(configured) = config.servers.get(&server) else {
        bail!("there is no server `{server}` in the configuration");
    };
    let value = read_value()?;
    let label = Label { tenant: &tenant, server: &server, name: &name };
    let keyring = Keyring::new(&config.secrets.keys);
    let set = with_store(&config, missing, async |store| {
        must_exist(&tenant, &config, store).await?;
        anyhow::Ok(by_tenant::set(store, &keyring, &actor(), label, configured, &value).await?)
    });
    set.await?;
    print_line(format_args!("set {label}"));
    Ok(())
}

async fn remove(args: SecretArgs) -> anyhow::Result<()> {
    let SecretArgs { tenant, server, name, config } = args;
    let Loaded { config, .. } = load_config(config)?;
    let label = Label { tenant: &tenant, server: &server, name: &name };
    let removed = with_store(&config, Missing::Refuse, async |store| {
        store.remove_secret(&actor(), label).await
    });
    removed.await?;
    print_line(format_args!("removed {label}"));
    Ok(())
}

async fn list(
    tenant: TenantName,
    server: Option<ServerId>,
    json: bool,
    args: ConfigArgs,
) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(args)?;
    let records = with_store(&config, Missing::Refuse, async |store| {
        let records = store.list_secrets(&tenant, server.as_ref()).await?;
        // A tenant that was removed from the file may have secrets left.
        if records.is_empty() {
            must_exist(&tenant, &config, store).await?;
        }
        anyhow::Ok(records)
    });
    let records = records.await?;
    let stored = records.iter().map(|record| &record.server);
    let servers: BTreeSet<&ServerId> = config.servers.keys().chain(stored).collect();
    let shown = servers.into_iter().filter(|id| server.as_ref().is_none_or(|only| only == *id));
    let views: Vec<_> =
        shown.flat_map(|id| by_tenant::views(id, config.servers.get(id), &records)).collect();
    if json {
        return print(&format!("{:#}\n", json!({"secrets": views})));
    }
    let rows = views.into_iter().map(|view| {
        let needed = if view.needed { "yes" } else { "no" };
        let set = view.updated_at.map_or("-".to_owned(), |at| format!("{at:.0}"));
        [view.server, view.name, needed.to_owned(), set]
    });
    print(&table(["SERVER", "SECRET", "NEEDED", "SET"], rows))
}

async fn rotate(args: ConfigArgs) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(args)?;
    let keyring = Keyring::new(&config.secrets.keys);
    let signing = SigningKeyring::new(&config.secrets.keys);
    let rotated = with_store(&config, Missing::Refuse, async |store| {
        let (mut rotated, mut unreadable) = by_tenant::rotate(store, &keyring, &actor()).await?;
        let reseal = |tenant: &TenantName, sealed: &str| match signing.reseal(tenant, sealed) {
            Resealed::Anew(sealed) => Some(sealed),
            Resealed::Already => None,
            Resealed::Unreadable => {
                unreadable.push(format!("callback secret of tenant `{tenant}`"));
                None
            }
        };
        let of_callbacks = store.reseal_callback_secrets(&actor(), reseal).await?;
        let tokens = ConnectionKeyring::new(&config.secrets.keys);
        let reseal = |tenant: &TenantId, server: &ServerId, sealed: &str| match tokens
            .reseal(tenant, server, sealed)
        {
            Resealed::Anew(sealed) => Some(sealed),
            Resealed::Already => None,
            Resealed::Unreadable => {
                unreadable.push(format!("connection of tenant `{tenant}` to `{server}`"));
                None
            }
        };
        let of_connections = store.reseal_connections(reseal).await?;
        rotated.seen += of_connections.seen;
        rotated.resealed += of_connections.resealed;
        rotated.seen += of_callbacks.seen;
        rotated.resealed += of_callbacks.resealed;
        anyhow::Ok((rotated, unreadable))
    });
    let (rotated, unreadable) = rotated.await?;
    print_line(format_args!("encrypted {} of {} secrets again", rotated.resealed, rotated.seen));
    if !unreadable.is_empty() {
        bail!("none of `secrets.keys` opens the {}", unreadable.join(", the "));
    }
    Ok(())
}

/// Reads the value from standard input. Arguments can be read by everybody on the machine.
fn read_value() -> anyhow::Result<Secret> {
    if stdin().is_terminal() {
        print_line("write the value, and end it with Ctrl-D on a line of its own:");
    }
    let mut value = String::new();
    // Reads a little more than can be stored, so that a longer value is refused.
    let limit = VALUE_LEN_MAX as u64 + 8;
    stdin().take(limit).read_to_string(&mut value).context("the value cannot be read")?;
    let trimmed = value.strip_suffix('\n').unwrap_or(&value);
    Ok(Secret::new(trimmed.strip_suffix('\r').unwrap_or(trimmed).to_owned()))
}
