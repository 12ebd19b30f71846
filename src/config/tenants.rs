//! `[tenants.*]`: tenants that only the file changes.

use std::collections::BTreeMap;

use super::error::{ConfigError, Place};
use super::kind::{self, Kind};
use super::section::{Settings, section};
use super::tree::{Node, Table, Value};
use super::{Config, Sources, reader};
use crate::common::ids::{ServerId, TenantName};
use crate::common::policy::{
    BURST_MAX, CallbackHost, Grants, IN_FLIGHT_MAX, Pattern, Policy, Rate, WEIGHT_MAX,
};

section! {
    /// Tenants may stand here or in the store (`trunkline tenant add`). Commands and the API cannot
    /// change those here. Keys can be made for both (`trunkline key create acme`).
    pub struct TenantConfig in "tenants.NAME" {
        /// Calls that may begin, per s, min or h. Unset: no limit.
        rate: Option<Rate>, kind::RATE;
        /// Calls of the `rate` that may begin at once. Unset: as many as the rate names.
        burst: Option<u32>, Kind::Count(BURST_MAX);
        /// Calls that may be in flight.
        max_in_flight: u32 = 256, Kind::Count(IN_FLIGHT_MAX);
        /// Share of a busy server, relative to other tenants.
        weight: u32 = 1, Kind::Count(WEIGHT_MAX);
        /// Servers, tools of servers, or toolsets that the tenant may use. `*` stands for any
        /// characters.
        servers: Grants = [], kind::GRANTS;
        /// Further limits by pattern, such as `limits."search/query" = { rate = "5/s" }`. One limit
        /// counts all calls that its pattern covers.
        limits: BTreeMap<Pattern, TenantLimit> = {}, LIMITS;
        /// Hosts that callbacks of asynchronous calls may go to (`Trunkline-Callback`).
        callback_hosts: Vec<CallbackHost> = [], kind::CALLBACK_HOSTS;
    }
}

section! {
    /// A further limit of a tenant, for the servers or tools that a pattern covers.
    pub struct TenantLimit in "tenants.NAME.limits.PATTERN" {
        /// Calls that may begin, per s, min or h. Unset: no limit.
        rate: Option<Rate>, kind::RATE;
        /// Calls of the `rate` that may begin at once. Unset: as many as the rate names.
        burst: Option<u32>, Kind::Count(BURST_MAX);
        /// Calls that may be in flight. Unset: no limit.
        max_in_flight: Option<u32>, Kind::Count(IN_FLIGHT_MAX);
    }
}

const LIMITS: Kind = Kind::Table {
    name: |name| match Pattern::parse(name) {
        Ok(_) => Ok(name.to_owned()),
        Err(error) => Err(format!("has a wrong name: {error}")),
    },
    entry: &Kind::Section(&TenantLimit::SECTION),
};

/// Returns the place of each tenant.
pub(super) fn places(settings: &Table) -> BTreeMap<String, Place> {
    match settings.get("tenants").map(|node| &node.value) {
        Some(Value::Table(tenants)) => {
            tenants.iter().map(|(name, node)| (name.clone(), node.place.clone())).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// Warns of tenants, grants and limits that have no effect, since no server is meant.
pub(super) fn matching_nothing(config: &Config, places: &BTreeMap<String, Place>) -> Vec<String> {
    let servers: Vec<&str> = config.servers.keys().map(ServerId::as_str).collect();
    let mut warnings = vec![];
    for (tenant, policy) in &config.tenants {
        let place = places.get(tenant.as_str());
        let place = place.map_or_else(String::new, |place| format!("{place}: "));
        let problems = policy.without_effect(&servers).into_iter();
        warnings.extend(problems.map(|problem| format!("{place}tenant `{tenant}`: {problem}")));
    }
    warnings
}

pub(super) fn tenants(
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<TenantName, Policy>, ConfigError> {
    super::named("tenants", node, TenantName::parse, |path, node| {
        let place = node.place.clone();
        let checked = reader::section(path, node, &TenantConfig::SECTION, sources)?;
        // A policy has the same names, and checks what settings say together.
        serde_json::from_value(checked).map_err(|error| place.error(format!("`{path}`: {error}")))
    })
}
