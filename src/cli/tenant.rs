//! `trunkline tenant`

use anyhow::{anyhow, bail};
use clap::Subcommand;
use jiff::Timestamp;
use serde_json::json;

use super::output::{align, print, table};
use super::policy_args::{PolicyArgs, RemovalArgs};
use super::{ConfigArgs, CreateArgs, Loaded, actor, load_config, with_store};
use crate::common::ids::{ServerId, TenantName};
use crate::common::policy::{Limit, Policy};
use crate::config::Config;
use crate::store::{Missing, Store, StoreError};
use crate::telemetry::logging::print_line;
use crate::tenants::{BUILT_IN, Known, KnownTenant, TenantView, known};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Add a tenant
    Add {
        #[command(flatten)]
        tenant: TenantArgs,
        #[command(flatten)]
        policy: Box<PolicyArgs>,
        #[command(flatten)]
        new: CreateArgs,
    },
    /// List all tenants
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
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
        Command::Add { tenant, policy, new } => add(tenant, *policy, new.missing()).await,
        Command::List { config, json } => list(config, json).await,
        Command::Show { tenant, json } => show(tenant, json).await,
        Command::Set { tenant, policy, removal } => set(tenant, *policy, removal).await,
        Command::Remove(tenant) => remove(tenant).await,
    }
}

async fn add(tenant: TenantArgs, args: PolicyArgs, missing: Missing) -> anyhow::Result<()> {
    let (id, config) = to_change(tenant)?;
    let mut policy = Policy::new();
    args.apply(&mut policy);
    policy.check()?;
    let added = with_store(&config, missing, async |store| {
        match store.add_tenant(&actor(), &id, &policy).await {
            Err(error @ StoreError::AlreadyExists(_)) => {
                bail!("{error}; `trunkline tenant set {id}` changes it")
            }
            outcome => Ok(outcome?),
        }
    });
    let revoked = added.await?;
    print_line(format_args!("added tenant `{id}`; `trunkline key create {id}` makes a key for it"));
    if revoked > 0 {
        print_line(format_args!(
            "revoked the keys that there were of an earlier tenant `{id}` ({revoked})"
        ));
    }
    if is_anonymous(&config, &id) {
        print_line(format_args!(
            "callers without a key use this tenant: its limits and rights apply to them from now \
             on"
        ));
    }
    if policy.servers.list().is_empty() {
        print_line(format_args!(
            "it may use nothing yet: `trunkline tenant set {id} --servers '*'` gives it all servers"
        ));
    } else {
        warn_without_effect(&config, &id, &policy);
    }
    Ok(())
}

/// Warns of grants and limits that match no configured server.
fn warn_without_effect(config: &Config, id: &TenantName, policy: &Policy) {
    let servers: Vec<&str> = config.servers.keys().map(ServerId::as_str).collect();
    for problem in policy.without_effect(&servers) {
        print_line(format_args!("warning: tenant `{id}`: {problem}"));
    }
}

async fn set(tenant: TenantArgs, args: PolicyArgs, removal: RemovalArgs) -> anyhow::Result<()> {
    let (id, config) = to_change(tenant)?;
    let change = |mut policy: Policy| {
        removal.apply(&mut policy)?;
        args.apply(&mut policy);
        policy.check()?;
        anyhow::Ok(policy)
    };
    let changed = with_store(&config, Missing::Refuse, async |store| {
        store.change_tenant(&actor(), &id, change).await
    });
    let policy = changed.await.map_err(|error| explained(error, &config, &id))?;
    print_line(format_args!("changed tenant `{id}`"));
    warn_without_effect(&config, &id, &policy);
    Ok(())
}

async fn remove(tenant: TenantArgs) -> anyhow::Result<()> {
    let (id, config) = to_change(tenant)?;
    let removed = with_store(&config, Missing::Refuse, async |store| {
        store.remove_tenant(&actor(), &id).await
    });
    let revoked = removed.await.map_err(|error| explained(error, &config, &id))?;
    print_line(format_args!("removed tenant `{id}` and revoked its keys ({revoked})"));
    if is_built_in(&config, &id) {
        print_line(format_args!(
            "callers without a key are refused until the gateway restarts; then the built-in \
             tenant `{id}` serves them without limits, unless you remove `auth.anonymous_tenant`"
        ));
    } else if is_anonymous(&config, &id) {
        print_line(format_args!(
            "callers without a key are refused from now on; remove `auth.anonymous_tenant`, or \
             the gateway does not start again"
        ));
    }
    Ok(())
}

/// Explains what to do about a tenant that is not in the store.
fn explained(error: anyhow::Error, config: &Config, id: &TenantName) -> anyhow::Error {
    match error.downcast_ref() {
        Some(StoreError::NotFound(_)) if is_built_in(config, id) => anyhow!(
            "tenant `{id}` is the built-in tenant of callers without a key and has no limits; \
             `trunkline tenant add {id}` sets some"
        ),
        Some(StoreError::NotFound(_)) => anyhow!(unknown(id)),
        _ => error,
    }
}

/// Returns the error for an unknown tenant.
fn unknown(id: &TenantName) -> String {
    format!(
        "there is no tenant `{id}`; `trunkline tenant add {id}` adds it, `trunkline tenant list` \
         shows all"
    )
}

fn is_anonymous(config: &Config, id: &TenantName) -> bool {
    config.auth.anonymous_tenant.as_ref() == Some(id)
}

fn is_built_in(config: &Config, id: &TenantName) -> bool {
    is_anonymous(config, id) && id.as_str() == BUILT_IN
}

/// Fails if the tenant is defined in the configuration.
fn to_change(tenant: TenantArgs) -> anyhow::Result<(TenantName, Config)> {
    let Loaded { config, origin, .. } = load_config(tenant.config)?;
    let id = tenant.id;
    if config.tenants.contains_key(&id) {
        bail!(
            "tenant `{id}` is defined in the configuration ({origin}); change it there, under \
             `[tenants.{id}]`"
        );
    }
    Ok((id, config))
}

/// Fails unless the tenant is in the store or in the configuration.
pub(super) async fn must_exist(
    id: &TenantName,
    config: &Config,
    store: &Store,
) -> anyhow::Result<()> {
    if !known_tenants(config, store).await?.contains_key(id) {
        bail!(unknown(id));
    }
    Ok(())
}

/// Returns all tenants, as a gateway that starts now would have them.
async fn known_tenants(config: &Config, store: &Store) -> Result<Known, StoreError> {
    let anonymous = config.auth.anonymous_tenant.as_ref();
    let (stored, file_tenants) = (store.tenants().await?, store.file_tenants().await?);
    Ok(known(&config.tenants, &stored, &file_tenants, anonymous))
}

async fn all(args: ConfigArgs) -> anyhow::Result<Known> {
    let Loaded { config, .. } = load_config(args)?;
    with_store(&config, Missing::Refuse, async |store| known_tenants(&config, store).await).await
}

async fn list(config: ConfigArgs, json: bool) -> anyhow::Result<()> {
    let tenants = all(config).await?;
    if json {
        let views = tenants.iter().map(|(id, tenant)| TenantView::of(id, tenant));
        return print(&format!("{:#}\n", json!({"tenants": views.collect::<Vec<_>>()})));
    }
    let header = ["TENANT", "RATE", "BURST", "IN FLIGHT", "WEIGHT", "SERVERS", "LIMITS", "FROM"];
    let rows = tenants.iter().map(|(id, KnownTenant { source, policy, .. })| {
        let [rate, burst, in_flight] = cells(&policy.limit);
        let (weight, servers) = (policy.weight.to_string(), servers(policy));
        let (limits, source) = (policy.limits.len().to_string(), source.as_str().to_owned());
        [id.to_string(), rate, burst, in_flight, weight, servers, limits, source]
    });
    print(&table(header, rows))
}

async fn show(tenant: TenantArgs, json: bool) -> anyhow::Result<()> {
    let id = tenant.id;
    let Some(tenant) = all(tenant.config).await?.remove(&id) else { bail!(unknown(&id)) };
    print(&match json {
        true => format!("{:#}\n", json!(TenantView::of(&id, &tenant))),
        false => describe(&id, &tenant),
    })
}

fn describe(id: &TenantName, tenant: &KnownTenant) -> String {
    let KnownTenant { source, policy, since, .. } = tenant;
    let since = since.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let [rate, burst, in_flight] = cells(&policy.limit);
    let mut rows = vec![
        ["tenant".to_owned(), id.to_string()],
        ["from".to_owned(), source.as_str().to_owned()],
        ["since".to_owned(), since.map_or_else(|| "-".to_owned(), |since| since.to_string())],
        ["rate".to_owned(), rate],
        ["burst".to_owned(), burst],
        ["in flight".to_owned(), in_flight],
        ["weight".to_owned(), policy.weight.to_string()],
        ["servers".to_owned(), servers(policy)],
    ];
    if !policy.callback_hosts.is_empty() {
        rows.push(["callbacks".to_owned(), joined(&policy.callback_hosts)]);
    }
    let mut text = align(&rows);
    if !policy.limits.is_empty() {
        let limits = policy.limits.iter().map(|(pattern, limit)| {
            let [rate, burst, in_flight] = cells(limit);
            [pattern.to_string(), rate, burst, in_flight]
        });
        text += &format!("\n{}", table(["LIMIT FOR", "RATE", "BURST", "IN FLIGHT"], limits));
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
    joined(policy.servers.list())
}

fn joined(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { "-".to_owned() } else { items.join(",") }
}
