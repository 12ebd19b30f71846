//! Whose resource a server is asked for next. Plain data.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::common::ids::TenantId;

/// What a server may be asked for at once for one tenant.
const OF_TENANT_MAX: usize = 4;

/// Tenants take turns, and those that have the least under way come first: whoever wants much that a server does not
/// answer waits for it alone.
#[derive(Default)]
pub(super) struct Turns {
    tenants: HashMap<TenantId, Turn>,
    last: u64,
}

/// Where a tenant stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    under_way: usize,
    /// The number of its last turn.
    last: u64,
}

impl Turns {
    /// The next resource of those that tenants wait for, and whose turn it is, until [`Turns::end`]. Nobody waits for that
    /// resource from here on.
    pub(super) fn next(
        &mut self,
        waiting: &mut BTreeMap<TenantId, BTreeSet<String>>,
    ) -> Option<(TenantId, String)> {
        waiting.retain(|_, uris| !uris.is_empty());
        self.tenants.retain(|tenant, turn| turn.under_way > 0 || waiting.contains_key(tenant));
        let turn = |tenant: &TenantId| self.tenants.get(tenant).copied().unwrap_or_default();
        let may_ask = waiting.keys().filter(|tenant| turn(tenant).under_way < OF_TENANT_MAX);
        let tenant = may_ask.min_by_key(|tenant| turn(tenant))?.clone();
        let uri = waiting.get(&tenant)?.first()?.clone();
        waiting.values_mut().for_each(|uris| _ = uris.remove(&uri));
        self.last += 1;
        let turn = self.tenants.entry(tenant.clone()).or_default();
        *turn = Turn { under_way: turn.under_way + 1, last: self.last };
        Some((tenant, uri))
    }

    /// The server has answered, or has not in time.
    pub(super) fn end(&mut self, tenant: &TenantId) {
        if let Some(turn) = self.tenants.get_mut(tenant) {
            turn.under_way -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(of: &[(&str, &[&str])]) -> BTreeMap<TenantId, BTreeSet<String>> {
        let uris = |uris: &[&str]| uris.iter().map(|uri| uri.to_string()).collect();
        of.iter().map(|(tenant, it)| (TenantId::parse(tenant).unwrap(), uris(it))).collect()
    }

    #[test]
    fn tenants_take_turns_and_none_has_more_than_its_part() {
        let mut turns = Turns::default();
        let mut all = waiting(&[("a", &["1", "2", "3", "4", "5", "6"]), ("b", &["1", "x", "y"])]);
        let mut next = || turns.next(&mut all).map(|(tenant, uri)| format!("{tenant}{uri}"));
        let taken: Vec<_> = std::iter::from_fn(&mut next).collect();
        // What both want is asked for once.
        assert_eq!(taken, ["a1", "bx", "a2", "by", "a3", "a4"]);
        turns.end(&TenantId::parse("a").unwrap());
        assert_eq!(turns.next(&mut all).unwrap().1, "5");
        assert!(turns.next(&mut all).is_none());
    }

    #[test]
    fn whoever_has_waited_longest_is_next_and_nothing_is_left_of_those_who_have_gone() {
        let mut turns = Turns::default();
        let names = ["a", "b", "c"];
        let mut served = vec![];
        for _ in 0..7 {
            let mut all = waiting(&names.map(|name| (name, &["1", "2"][..])));
            let (tenant, _) = turns.next(&mut all).unwrap();
            turns.end(&tenant);
            served.push(tenant.to_string());
        }
        assert_eq!(served, ["a", "b", "c", "a", "b", "c", "a"]);
        assert!(turns.next(&mut BTreeMap::new()).is_none() && turns.tenants.is_empty());
    }
}
