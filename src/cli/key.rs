//! `trunkline key`

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use jiff::Timestamp;
use serde_json::json;

use super::output::{print, table};
use super::tenant::must_exist;
use super::{ConfigArgs, CreateArgs, Loaded, actor, load_config, with_store};
use crate::common::ids::TenantName;
use crate::common::keys::{ApiKey, KeyId, parse_name};
use crate::store::{KeyOwner, KeyRecord, KeyState, Missing, StoreError};
use crate::telemetry::logging::print_line;
use crate::tenants::KeyView;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Create a key and print it on standard output; it cannot be shown again
    Create {
        #[command(flatten)]
        owner: OwnerArgs,
        /// Name of the key in lists
        #[arg(long, value_parser = parse_name)]
        name: Option<String>,
        /// Lifetime, such as 90d, 12h or 30min [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        expires_in: Option<Duration>,
        #[command(flatten)]
        new: CreateArgs,
    },
    /// List the keys of a tenant
    List {
        #[command(flatten)]
        owner: OwnerArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key
    Revoke {
        /// Key id: the part between `tl_` and the next `_`; a whole key is accepted too
        #[arg(value_name = "KEY_ID", value_parser = parse_id)]
        id: KeyId,
        #[command(flatten)]
        config: ConfigArgs,
    },
}

#[derive(clap::Args)]
pub(super) struct OwnerArgs {
    /// Tenant id
    #[arg(
        value_parser = TenantName::parse,
        required_unless_present = "admin",
        conflicts_with = "admin"
    )]
    tenant: Option<TenantName>,
    /// Administrators' keys instead, for the admin API
    #[arg(long)]
    admin: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create { owner, name, expires_in, new } => {
            create(owner, name, expires_in, new.missing()).await
        }
        Command::List { owner, json } => list(owner, json).await,
        Command::Revoke { id, config } => revoke(id, config).await,
    }
}

async fn create(
    args: OwnerArgs,
    name: Option<String>,
    expires_in: Option<Duration>,
    missing: Missing,
) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(args.config)?;
    let owner = args.tenant.map_or(KeyOwner::Admin, KeyOwner::Tenant);
    let expires = expires_in.map(|time| (Timestamp::now() + time).as_millisecond());
    let new = with_store(&config, missing, async |store| {
        if let KeyOwner::Tenant(tenant) = &owner {
            must_exist(tenant, &config, store).await?;
        }
        match store.create_key(&actor(), &owner, name.as_deref(), expires).await {
            Err(error @ StoreError::TooManyKeys(_)) => {
                let active = store.list_keys(&owner).await?;
                bail!("{error}: {}", revocations(&active));
            }
            outcome => Ok(outcome?),
        }
    });
    let new = new.await?;
    let id = new.record.id;
    writeln!(std::io::stdout(), "{}", new.key.expose())
        .with_context(|| format!("the key cannot be shown, so `trunkline key revoke {id}`"))?;
    let until =
        expires.map_or("until it is revoked".to_owned(), |at| format!("until {}", time(at)));
    print_line(format_args!("key {id} of {owner}, valid {until}; it is not shown again"));
    Ok(())
}

/// Returns the command that revokes each active key.
fn revocations(keys: &[KeyRecord]) -> String {
    let now = Timestamp::now().as_millisecond();
    let active = keys.iter().filter(|key| key.state(now) == KeyState::Active);
    let command = |key: &KeyRecord| match &key.name {
        Some(name) => format!("`trunkline key revoke {}` ({name})", key.id),
        None => format!("`trunkline key revoke {}`", key.id),
    };
    active.map(command).collect::<Vec<_>>().join(" or ")
}

async fn list(args: OwnerArgs, json: bool) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(args.config)?;
    let owner = args.tenant.map_or(KeyOwner::Admin, KeyOwner::Tenant);
    let keys = with_store(&config, Missing::Refuse, async |store| {
        let keys = store.list_keys(&owner).await?;
        // A tenant that was removed from the file may have keys left.
        if let KeyOwner::Tenant(tenant) = &owner
            && keys.is_empty()
        {
            must_exist(tenant, &config, store).await?;
        }
        anyhow::Ok(keys)
    });
    let keys = keys.await?;
    if json {
        let views: Vec<_> = keys.iter().map(KeyView::of).collect();
        return print(&format!("{:#}\n", json!({"keys": views})));
    }
    let now = Timestamp::now().as_millisecond();
    let optional = |at: Option<i64>| at.map_or("-".to_owned(), time);
    let rows = keys.iter().map(|key| {
        [
            key.id.to_string(),
            key.name.clone().unwrap_or_else(|| "-".to_owned()),
            key.state(now).as_str().to_owned(),
            time(key.created),
            optional(key.expires),
            optional(key.last_used),
        ]
    });
    print(&table(["KEY", "NAME", "STATE", "CREATED", "EXPIRES", "LAST USED"], rows))
}

async fn revoke(id: KeyId, config: ConfigArgs) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(config)?;
    let revoked = with_store(&config, Missing::Refuse, async |store| {
        match store.revoke_key(&actor(), &id).await {
            Err(error @ StoreError::NotFound(_)) => {
                bail!("{error}; `trunkline key list TENANT` shows those of a tenant")
            }
            outcome => Ok(outcome?),
        }
    });
    revoked.await?;
    print_line(format_args!("revoked key {id}"));
    Ok(())
}

/// Formats a time to the second.
fn time(at: i64) -> String {
    Timestamp::from_millisecond(at).map_or("-".to_owned(), |at| format!("{at:.0}"))
}

/// Parses a key id. A whole key is accepted too, since people paste it.
fn parse_id(text: &str) -> Result<KeyId, &'static str> {
    let id = KeyId::parse(text).or_else(|| ApiKey::parse(text).map(|key| key.id()));
    id.ok_or("it is not the id of a key, which has 12 letters and digits")
}

/// Parses a lifetime from a minute to a hundred years.
fn parse_time(text: &str) -> Result<Duration, &'static str> {
    const PROBLEM: &str =
        "write a whole number and `min`, `h` or `d`, such as `90d`, at most `36500d`";
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or(PROBLEM)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| PROBLEM)?;
    let minutes = match unit {
        "min" => 1,
        "h" => 60,
        "d" => 24 * 60,
        _ => return Err(PROBLEM),
    };
    match number.checked_mul(minutes) {
        Some(minutes @ 1..=52_560_000) => Ok(Duration::from_secs(60 * minutes)),
        _ => Err(PROBLEM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_minutes_hours_and_days() {
        for (text, seconds) in [("90d", 7_776_000), ("12h", 43_200), ("1min", 60)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "90", "d", "0d", "-1d", "1.5h", "36501d", "99999999999999999999d", "1 d"] {
            assert!(parse_time(bad).unwrap_err().contains("such as `90d`"), "{bad}");
        }
    }

    #[test]
    fn a_key_is_named_by_its_id_or_by_itself() {
        let key = ApiKey::generate();
        assert_eq!(parse_id(key.id().as_str()), Ok(key.id()));
        assert_eq!(parse_id(key.expose()), Ok(key.id()));
        assert!(parse_id("tl_nothing").is_err());
    }

    #[test]
    fn times_are_shown_to_the_second() {
        assert_eq!(time(1_700_000_000_999), "2023-11-14T22:13:20Z");
    }
}
