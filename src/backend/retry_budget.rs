//! Bounds how often calls that a server may have received are made again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::common::ids::TenantId;

/// Each call adds the first to the budget, each retry takes the second: one retry for ten calls.
const EARNED_PER_CALL: u32 = 1;
const COST_OF_RETRY: u32 = 10;
/// The most that is saved up; a tenant starts with it.
const BUDGET_MAX: u32 = 10 * COST_OF_RETRY;
/// The most tenants whose budget is not full. Beyond, the fullest budget counts as full.
const SPENDERS_MAX: usize = 1024;

/// Limits the retries of each tenant to one in ten of its calls: a server that fails every call
/// must not get twice as many. No tenant spends the budget of another.
#[derive(Debug, Default)]
pub struct RetryBudgets {
    /// The budgets that are not full.
    spent: Mutex<HashMap<TenantId, u32>>,
    /// The number of these budgets.
    spenders: AtomicUsize,
}

impl RetryBudgets {
    pub fn note_call(&self, tenant: &TenantId) {
        // Nearly always, nobody has spent anything: then no lock is taken.
        if self.spenders.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut spent = self.spent.lock();
        let Some(saved) = spent.get_mut(tenant) else { return };
        *saved += EARNED_PER_CALL;
        if *saved >= BUDGET_MAX {
            spent.remove(tenant);
            self.spenders.store(spent.len(), Ordering::Relaxed);
        }
    }

    /// Returns whether a call of a tenant may be made again. Spends the tenant's budget if so.
    pub fn spend(&self, tenant: &TenantId) -> bool {
        let mut spent = self.spent.lock();
        if spent.len() >= SPENDERS_MAX && !spent.contains_key(tenant) {
            let fullest = spent.iter().max_by_key(|(_, saved)| **saved);
            let fullest = fullest.map(|(tenant, _)| tenant.clone());
            fullest.map(|tenant| spent.remove(&tenant));
        }
        let saved = spent.entry(tenant.clone()).or_insert(BUDGET_MAX);
        let left = saved.checked_sub(COST_OF_RETRY);
        *saved = left.unwrap_or(*saved);
        self.spenders.store(spent.len(), Ordering::Relaxed);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_ten_may_be_made_again() {
        let (budgets, tenant) = (RetryBudgets::default(), TenantId::testing("a"));
        let spent = (0..1000).filter(|_| {
            budgets.note_call(&tenant);
            budgets.spend(&tenant)
        });
        // Those that were saved up, and a tenth of the calls.
        assert!((105..=112).contains(&spent.count()));
    }

    #[test]
    fn a_tenant_that_spends_its_budget_leaves_those_of_others() {
        let budgets = RetryBudgets::default();
        let [greedy, other] = ["greedy", "other"].map(TenantId::testing);
        while budgets.spend(&greedy) {}
        assert!(budgets.spend(&other));
        // Calls of others earn it nothing.
        (0..1000).for_each(|_| budgets.note_call(&other));
        assert!(!budgets.spend(&greedy));
        (0..COST_OF_RETRY).for_each(|_| budgets.note_call(&greedy));
        assert!(budgets.spend(&greedy) && !budgets.spend(&greedy));
    }

    #[test]
    fn the_number_of_budgets_is_bounded_and_full_ones_take_no_memory() {
        let budgets = RetryBudgets::default();
        let greedy = TenantId::testing("greedy");
        while budgets.spend(&greedy) {}
        for n in 0..2 * SPENDERS_MAX {
            assert!(budgets.spend(&TenantId::testing(&format!("t{n}"))));
        }
        assert_eq!(budgets.spent.lock().len(), SPENDERS_MAX);
        // An empty budget is never the fullest.
        assert!(!budgets.spend(&greedy));
        let last = TenantId::testing(&format!("t{}", 2 * SPENDERS_MAX - 1));
        (0..COST_OF_RETRY).for_each(|_| budgets.note_call(&last));
        assert_eq!(budgets.spent.lock().len(), SPENDERS_MAX - 1);
        assert_eq!(budgets.spenders.load(Ordering::Relaxed), SPENDERS_MAX - 1);
    }
}
