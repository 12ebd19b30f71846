//! `trunkline tenant`

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::json;

use super::output::print;
use super::policy_args::{PolicyArgs, RemovalArgs};
use super::table::align;
use super::{ConfigArgs, Loaded, actor, known_tenants, load_config, with_store};
use crate::common::ids::TenantId;
use crate::common::policy::{Limit, Pattern, Policy};
use crate::config::Config;
use crate::store::StoreError;
use crate::tenants::{Known, Source, TenantView};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add a tenant
    Add {
        #[command(flatten)]
        tenant: TenantArgs,
        #[command(flatten)]
        policy: Box<PolicyArgs>,
    },
    /// List all tenants
    List(ListArgs),
    /// Show one tenant
    Show {
        #[command(flatten)]
        tenant: TenantArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the given settings of a tenant
    Set {
        #[command(flatten)]
        tenant: TenantArgs,
        #[command(flatten)]
        policy: Box<PolicyArgs>,
        #[command(flatten)]
        removal: RemovalArgs,
    },
    /// Remove a tenant and revoke its keys
    Remove(TenantArgs),
}

#[derive(clap::Args)]
struct TenantArgs {
    /// Tenant id
    #[arg(value_name = "TENANT", value_parser = TenantId::parse)]
    id: TenantId,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Add { tenant, policy } => add(tenant, *policy).await,
        Command::List(args) => list(args).await,
        Command::Show { tenant, json } => show(tenant, json).await,
        Command::Set { tenant, policy, removal } => set(tenant, *policy, removal).await,
        Command::Remove(tenant) => remove(tenant).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn add(tenant: TenantArgs, args: PolicyArgs) -> anyhow::Result<()> {
    let (id, config) = to_change(tenant)?;
    let mut policy = Policy::new();
    args.apply(&mut policy);
    policy.check()?;
    let added =
        with_store(&config, async |store| Ok(store.add_tenant(&actor(), &id, &policy).await));
    let revoked = match added.await? {
        Err(error @ StoreError::AlreadyExists(_)) => {
            bail!("{error}; `trunkline tenant set {id}` changes it")
        }
        outcome => outcome?,
    };
    eprintln!("added tenant `{id}`; `trunkline key create {id}` makes a key for it");
    if revoked > 0 {
        eprintln!("revoked the keys that there were of an earlier tenant `{id}` ({revoked})");
    }
    if is_anonymous(&config, &id) {
        eprintln!(
            "callers without a key use this tenant: its limits and rights apply to them from now \
             on"
        );
    }
    if policy.servers.patterns().is_empty() {
        eprintln!(
            "it may use nothing yet: `trunkline tenant set {id} --servers '*'` gives it all servers"
        );
    }
    Ok(())
}

async fn set(tenant: TenantArgs, args: PolicyArgs, removal: RemovalArgs) -> anyhow::Result<()> {
    let (id, config) = to_change(tenant)?;
    let change = |mut policy: Policy| {
        removal.apply(&mut policy)?;
        args.apply(&mut policy);
        policy.check()?;
        Ok(policy)
    };
    let changed =
        with_store(&config, async |store| store.change_tenant(&actor(), &id, change).await);
    changed.await.map_err(|error| explained(error, &config, &id))?;
    eprintln!("changed tenant `{id}`");
    Ok(())
}

async fn remove(tenant: TenantArgs) -> anyhow::Result<()> {
    let (id, config) = to_change(tenant)?;
    let removed = with_store(&config, async |store| Ok(store.remove_tenant(&actor(), &id).await?));
    let revoked = removed.await.map_err(|error| explained(error, &config, &id))?;
    eprintln!("removed tenant `{id}` and revoked its keys ({revoked})");
    Ok(())
}

/// Explains what to do about a tenant that is not in the store.
fn explained(error: anyhow::Error, config: &Config, id: &TenantId) -> anyhow::Error {
    match error.downcast_ref() {
        Some(StoreError::NotFound(_)) if is_anonymous(config, id) => anyhow!(
            "tenant `{id}` is the built-in tenant of callers without a key and has no limits; \
             `trunkline tenant add {id}` sets some"
        ),
        Some(StoreError::NotFound(_)) => anyhow!(unknown(id)),
        _ => error,
    }
}

/// Returns the error for an unknown tenant.
pub(super) fn unknown(id: &TenantId) -> String {
    format!(
        "there is no tenant `{id}`; `trunkline tenant add {id}` adds it, `trunkline tenant list` \
         shows all"
    )
}

fn is_anonymous(config: &Config, id: &TenantId) -> bool {
    config.auth.anonymous_tenant.as_ref() == Some(id)
}

/// Fails if the tenant is defined in the configuration.
fn to_change(tenant: TenantArgs) -> anyhow::Result<(TenantId, Config)> {
    let Loaded { config, origin, .. } = load_config(tenant.config, None)?;
    let id = tenant.id;
    if config.tenants.contains_key(&id) {
        bail!(
            "tenant `{id}` is defined in the configuration ({origin}); change it there, under \
             `[tenants.{id}]`"
        );
    }
    Ok((id, config))
}

async fn all(args: ConfigArgs) -> anyhow::Result<Known> {
    let Loaded { config, .. } = load_config(args, None)?;
    with_store(&config, async |store| known_tenants(&config, store).await).await
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let tenants = all(args.config).await?;
    if args.json {
        let views =
            tenants.iter().map(|(id, (source, policy))| TenantView::of(id, *source, policy));
        return print(&format!("{:#}\n", json!({"tenants": views.collect::<Vec<_>>()})));
    }
    let header = ["TENANT", "RATE", "BURST", "IN FLIGHT", "WEIGHT", "SERVERS", "LIMITS", "FROM"];
    let mut rows = vec![header.map(str::to_owned)];
    for (id, (source, policy)) in &tenants {
        let [rate, burst, in_flight] = cells(&policy.limit);
        let (weight, servers) = (policy.weight.to_string(), servers(policy));
        let (limits, source) = (policy.limits.len().to_string(), source.as_str().to_owned());
        rows.push([id.to_string(), rate, burst, in_flight, weight, servers, limits, source]);
    }
    print(&align(&rows))
}

async fn show(tenant: TenantArgs, json: bool) -> anyhow::Result<()> {
    let id = tenant.id;
    let Some((source, policy)) = all(tenant.config).await?.remove(&id) else { bail!(unknown(&id)) };
    print(&match json {
        true => format!("{:#}\n", json!(TenantView::of(&id, source, &policy))),
        false => describe(&id, source, &policy),
    })
}

fn describe(id: &TenantId, source: Source, policy: &Policy) -> String {
    let [rate, burst, in_flight] = cells(&policy.limit);
    let rows = [
        ["tenant".to_owned(), id.to_string()],
        ["from".to_owned(), source.as_str().to_owned()],
        ["rate".to_owned(), rate],
        ["burst".to_owned(), burst],
        ["in flight".to_owned(), in_flight],
        ["weight".to_owned(), policy.weight.to_string()],
        ["servers".to_owned(), servers(policy)],
    ];
    let mut text = align(&rows);
    if !policy.limits.is_empty() {
        let mut rows = vec![["LIMIT FOR", "RATE", "BURST", "IN FLIGHT"].map(str::to_owned)];
        for (pattern, limit) in &policy.limits {
            let [rate, burst, in_flight] = cells(limit);
            rows.push([pattern.to_string(), rate, burst, in_flight]);
        }
        text += &format!("\n{}", align(&rows));
    }
    text
}

/// Formats rate, burst and calls in flight.
fn cells(limit: &Limit) -> [String; 3] {
    let none = || "-".to_owned();
    [
        limit.rate.map_or_else(none, |rate| rate.to_string()),
        limit.burst.map_or_else(none, |burst| burst.to_string()),
        limit.max_in_flight.map_or_else(none, |max| max.to_string()),
    ]
}

fn servers(policy: &Policy) -> String {
    let patterns: Vec<String> = policy.servers.patterns().iter().map(Pattern::to_string).collect();
    if patterns.is_empty() { "-".to_owned() } else { patterns.join(",") }
}
