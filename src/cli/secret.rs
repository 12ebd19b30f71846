//! `trunkline secret`

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read, stdin};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::output::print;
use super::table::align;
use super::tenant::unknown;
use super::{ConfigArgs, Loaded, actor, known_tenants, load_config, with_store};
use crate::config::{Config, Secret};
use crate::ids::{ServerId, TenantId};
use crate::secrets::{Keyring, Label, VALUE_LEN_MAX};
use crate::store::Store;
use crate::tenant::{SecretView, secrets};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set a tenant's secret for a server to what is read from standard input, but for a line break at its end
    Set {
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// Show which secrets a tenant's servers need and which are set, but never what they are
    List {
        /// The tenant's id
        #[arg(value_parser = TenantId::parse)]
        tenant: TenantId,
        /// Only those for this server
        #[arg(value_parser = ServerId::parse)]
        server: Option<ServerId>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Remove a tenant's secret
    Remove {
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// Encrypt all secrets with the first of `secrets.keys` again, so that the others can be taken away
    Rotate {
        #[command(flatten)]
        config: ConfigArgs,
    },
}

#[derive(clap::Args)]
struct SecretArgs {
    /// The tenant's id
    #[arg(value_parser = TenantId::parse)]
    tenant: TenantId,
    /// The server's id
    #[arg(value_parser = ServerId::parse)]
    server: ServerId,
    /// The secret's name, as in `${secret:NAME}`
    name: String,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Set { secret } => set(secret).await,
        Command::List { tenant, server, json, config } => list(tenant, server, json, config).await,
        Command::Remove { secret } => remove(secret).await,
        Command::Rotate { config } => rotate(config).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn set(args: SecretArgs) -> anyhow::Result<()> {
    let SecretArgs { tenant, server, name, config } = args;
    let Loaded { config, .. } = load_config(config, None)?;
    let Some(configured) = config.servers.get(&server) else {
        bail!("there is no server `{server}` in the configuration");
    };
    let value = read_value()?;
    let label = Label { tenant: &tenant, server: &server, name: &name };
    let keyring = Keyring::new(&config.secrets.keys);
    let set = with_store(&config, async |store| {
        must_exist(&tenant, &config, store).await?;
        Ok(secrets::set(store, &keyring, &actor(), label, configured, &value).await?)
    });
    set.await?;
    eprintln!("set {label}");
    Ok(())
}

async fn remove(args: SecretArgs) -> anyhow::Result<()> {
    let SecretArgs { tenant, server, name, config } = args;
    let Loaded { config, .. } = load_config(config, None)?;
    let removed = with_store(&config, async |store| {
        Ok(store.remove_secret(&actor(), &tenant, &server, &name).await?)
    });
    removed.await?;
    eprintln!("removed {}", Label { tenant: &tenant, server: &server, name: &name });
    Ok(())
}

async fn list(
    tenant: TenantId,
    server: Option<ServerId>,
    json: bool,
    args: ConfigArgs,
) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(args, None)?;
    let records = with_store(&config, async |store| {
        let records = store.list_secrets(&tenant, server.as_ref()).await?;
        // A tenant that has left the file may have left secrets.
        if records.is_empty() {
            must_exist(&tenant, &config, store).await?;
        }
        Ok(records)
    });
    let records = records.await?;
    let stored = records.iter().map(|record| &record.server);
    let servers: BTreeSet<&ServerId> = config.servers.keys().chain(stored).collect();
    let shown = servers.into_iter().filter(|id| server.as_ref().is_none_or(|only| only == *id));
    let views: Vec<_> =
        shown.flat_map(|id| secrets::views(id, config.servers.get(id), &records)).collect();
    print(&match json {
        true => format!("{:#}\n", json!({"secrets": views})),
        false => table(&views),
    })
}

fn table(views: &[SecretView]) -> String {
    let mut rows = vec![["SERVER", "SECRET", "NEEDED", "SET"].map(str::to_owned)];
    for view in views {
        let needed = if view.needed { "yes" } else { "no" };
        let set = view.updated_at.map_or("-".to_owned(), |at| format!("{at:.0}"));
        rows.push([view.server.clone(), view.name.clone(), needed.to_owned(), set]);
    }
    align(&rows)
}

async fn rotate(args: ConfigArgs) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(args, None)?;
    let keyring = Keyring::new(&config.secrets.keys);
    let rotated =
        with_store(&config, async |store| Ok(secrets::rotate(store, &keyring, &actor()).await?));
    let (rotated, unreadable) = rotated.await?;
    eprintln!("encrypted {} of {} secrets again", rotated.resealed, rotated.seen);
    if !unreadable.is_empty() {
        bail!("none of `secrets.keys` opens the {}", unreadable.join(", the "));
    }
    Ok(())
}

async fn must_exist(tenant: &TenantId, config: &Config, store: &Store) -> anyhow::Result<()> {
    if !known_tenants(config, store).await?.contains_key(tenant) {
        bail!(unknown(tenant));
    }
    Ok(())
}

/// Never an argument: those can be read by everybody on the machine.
fn read_value() -> anyhow::Result<Secret> {
    if stdin().is_terminal() {
        eprintln!("write the value, and end it with Ctrl-D on a line of its own:");
    }
    let mut value = String::new();
    // A little more than can be stored, and then it is refused.
    let limit = VALUE_LEN_MAX as u64 + 8;
    stdin().take(limit).read_to_string(&mut value).context("the value cannot be read")?;
    let trimmed = value.strip_suffix('\n').unwrap_or(&value);
    Ok(Secret::new(trimmed.strip_suffix('\r').unwrap_or(trimmed).to_owned()))
}
