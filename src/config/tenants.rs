//! `[tenants.*]`: what tenants of the file may do.

use std::collections::BTreeMap;

use super::error::ConfigError;
use super::section::{Section, into_table};
use super::tree::Node;
use super::values;
use crate::common::ids::TenantId;
use crate::common::policy::{BURST_MAX, Grants, IN_FLIGHT_MAX, Limit, Pattern, Policy, WEIGHT_MAX};

const TENANT_KEYS: &[&str] = &["rate", "burst", "max_in_flight", "weight", "servers", "limits"];
const LIMIT_KEYS: &[&str] = &["rate", "burst", "max_in_flight"];

pub(super) fn tenants(node: Node) -> Result<BTreeMap<TenantId, Policy>, ConfigError> {
    let (_, table) = into_table("tenants", node)?;
    let mut tenants = BTreeMap::new();
    for (name, node) in table {
        let place = node.place.clone();
        let id = TenantId::parse(&name).map_err(|error| place.error(error.to_string()))?;
        let path = format!("tenants.{name}");
        let policy = policy(&path, node)?;
        policy.check().map_err(|error| place.error(format!("`{path}`: {error}")))?;
        tenants.insert(id, policy);
    }
    Ok(tenants)
}

fn policy(path: &str, node: Node) -> Result<Policy, ConfigError> {
    let mut tenant = Section::open(path, node, TENANT_KEYS)?;
    let defaults = Policy::new();
    let mut limit = limit(&mut tenant)?;
    limit.max_in_flight = limit.max_in_flight.or(defaults.limit.max_in_flight);
    let limits = match tenant.table("limits") {
        Some(node) => scoped(&format!("{path}.limits"), node)?,
        None => BTreeMap::new(),
    };
    Ok(Policy {
        limit,
        weight: tenant.optional("weight", up_to(WEIGHT_MAX))?.unwrap_or(defaults.weight),
        servers: tenant.optional("servers", grants)?.unwrap_or_default(),
        limits,
    })
}

fn scoped(path: &str, node: Node) -> Result<BTreeMap<Pattern, Limit>, ConfigError> {
    let (_, table) = into_table(path, node)?;
    let mut limits = BTreeMap::new();
    for (name, node) in table {
        let pattern = Pattern::parse(&name)
            .map_err(|error| node.place.error(format!("`{path}`: {error}")))?;
        let mut section = Section::open(&format!("{path}.{name}"), node, LIMIT_KEYS)?;
        limits.insert(pattern, limit(&mut section)?);
    }
    Ok(limits)
}

fn limit(section: &mut Section) -> Result<Limit, ConfigError> {
    Ok(Limit {
        rate: section.optional("rate", values::rate)?,
        burst: section.optional("burst", up_to(BURST_MAX))?,
        max_in_flight: section.optional("max_in_flight", up_to(IN_FLIGHT_MAX))?,
    })
}

fn up_to(max: u32) -> impl FnOnce(Node) -> Result<u32, String> {
    move |node| values::count(node, max)
}

fn grants(node: Node) -> Result<Grants, String> {
    let patterns = values::texts(node, "search/*")?;
    let patterns = patterns.iter().map(|text| Pattern::parse(text));
    let patterns = patterns.collect::<Result<_, _>>();
    patterns.map(Grants::new).map_err(|error| format!("cannot be used: {error}"))
}
