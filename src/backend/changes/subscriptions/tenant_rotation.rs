//! Decides which tenant's resource is requested next. Plain data.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::common::ids::TenantId;

const IN_FLIGHT_PER_TENANT_MAX: usize = 4;

/// Tenants take turns; those with the fewest requests in flight come first. A tenant with many
/// unanswered requests delays itself only.
#[derive(Default)]
pub(super) struct TenantRotation {
    tenants: HashMap<TenantId, TenantTurn>,
    last_turn: u64,
}

/// Ordered by priority: the smallest is next.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TenantTurn {
    in_flight: usize,
    last_turn: u64,
}

impl TenantRotation {
    /// Takes the next resource out of `waiting` and returns it with its tenant. The request counts
    /// as in flight until [`TenantRotation::end`].
    pub(super) fn next(
        &mut self,
        waiting: &mut BTreeMap<TenantId, BTreeSet<String>>,
    ) -> Option<(TenantId, String)> {
        waiting.retain(|_, uris| !uris.is_empty());
        self.tenants.retain(|tenant, turn| turn.in_flight > 0 || waiting.contains_key(tenant));
        let turn = |tenant: &TenantId| self.tenants.get(tenant).copied().unwrap_or_default();
        let may_ask = |tenant: &&TenantId| turn(tenant).in_flight < IN_FLIGHT_PER_TENANT_MAX;
        let tenant = waiting.keys().filter(may_ask).min_by_key(|tenant| turn(tenant))?.clone();
        let uri = waiting.get(&tenant)?.first()?.clone();
        waiting.values_mut().for_each(|uris| _ = uris.remove(&uri));
        self.last_turn += 1;
        let turn = self.tenants.entry(tenant.clone()).or_default();
        *turn = TenantTurn { in_flight: turn.in_flight + 1, last_turn: self.last_turn };
        Some((tenant, uri))
    }

    /// Ends a request: the server has answered, or the time is up.
    pub(super) fn end(&mut self, tenant: &TenantId) {
        if let Some(turn) = self.tenants.get_mut(tenant) {
            turn.in_flight -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(of: &[(&str, &[&str])]) -> BTreeMap<TenantId, BTreeSet<String>> {
        let uris = |uris: &[&str]| uris.iter().map(|uri| uri.to_string()).collect();
        of.iter().map(|(tenant, it)| (TenantId::testing(tenant), uris(it))).collect()
    }

    #[test]
    fn tenants_take_turns_within_their_limit() {
        let mut rotation = TenantRotation::default();
        let mut all = waiting(&[("a", &["1", "2", "3", "4", "5", "6"]), ("b", &["1", "x", "y"])]);
        let mut next = || rotation.next(&mut all).map(|(tenant, uri)| format!("{tenant}{uri}"));
        let taken: Vec<_> = std::iter::from_fn(&mut next).collect();
        // A resource that both want is requested once.
        assert_eq!(taken, ["a1", "bx", "a2", "by", "a3", "a4"]);
        rotation.end(&TenantId::testing("a"));
        assert_eq!(rotation.next(&mut all).unwrap().1, "5");
        assert!(rotation.next(&mut all).is_none());
    }

    #[test]
    fn the_tenant_that_waited_longest_is_next_and_absent_tenants_are_removed() {
        let mut rotation = TenantRotation::default();
        let names = ["a", "b", "c"];
        let mut served = vec![];
        for _ in 0..7 {
            let mut all = waiting(&names.map(|name| (name, &["1", "2"][..])));
            let (tenant, _) = rotation.next(&mut all).unwrap();
            rotation.end(&tenant);
            served.push(tenant.to_string());
        }
        assert_eq!(served, ["a", "b", "c", "a", "b", "c", "a"]);
        assert!(rotation.next(&mut BTreeMap::new()).is_none() && rotation.tenants.is_empty());
    }
}
