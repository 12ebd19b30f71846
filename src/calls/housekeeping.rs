//! Work beside the calls: takes over calls of gateways that are gone, deletes what has expired,
//! and evicts the oldest results of tenants that keep too much.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::CallsInner;
use super::account::Account;
use crate::store::{CallState, Outage, StoreError};

/// A gateway that is gone is noticed within the time of its last heartbeat and this.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause between two steps of a long deletion, for those who write meanwhile.
const STEP_PAUSE: Duration = Duration::from_millis(20);
/// Calls claimed at once, so that several gateways share them.
const CLAIMED_MAX: u32 = 50;
/// A call's task and its record agree after this time.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// Calls that are looked at for that, the oldest ones.
const OPEN_MAX: u32 = 1000;
/// Steps of deletion in one round, for each kind.
const STEPS_MAX: u32 = 50;

impl CallsInner {
    /// Runs for ever.
    pub(super) async fn keep_house(self: Arc<Self>) {
        let meanwhile = "calls of gateways that are gone wait";
        let mut outage = Outage::new(&self.store, "upkeep of kept calls", meanwhile);
        loop {
            outage.note(self.look_after().await);
            sleep(LOOK_EVERY).await;
        }
    }

    async fn look_after(self: &Arc<Self>) -> Result<(), StoreError> {
        self.take_over().await?;
        let totals = self.store.call_totals().await?;
        self.accounts.set_totals(&totals);
        for account in self.accounts.all() {
            self.evict(&account).await?;
        }
        self.delete_gone_tenants().await?;
        for _ in 0..STEPS_MAX {
            if !self.store.delete_expired_calls(&self.owners.me, self.clock.now()).await? {
                break;
            }
            sleep(STEP_PAUSE).await;
        }
        Ok(())
    }

    /// Deletes the calls of tenants that were removed.
    async fn delete_gone_tenants(&self) -> Result<(), StoreError> {
        for tenant in self.store.gone_call_tenants().await? {
            let mut steps = 0;
            while self.store.delete_tenants_calls(&self.owners.me, &tenant).await? {
                steps += 1;
                if steps == STEPS_MAX {
                    // The rest in the next round.
                    return Ok(());
                }
                sleep(STEP_PAUSE).await;
            }
            while self.store.delete_tenants_callbacks(&tenant).await? {
                sleep(STEP_PAUSE).await;
            }
            self.store.forget_call_usage(&tenant).await?;
        }
        Ok(())
    }

    /// Gives up the begun calls of gateways that are gone, and claims the others.
    async fn take_over(self: &Arc<Self>) -> Result<(), StoreError> {
        for owner in self.store.call_owners().await? {
            if *owner == *self.owners.me {
                self.find_lost().await?;
            }
            if self.owners.is_alive(&owner).await? {
                continue;
            }
            let given_up = self.store.abandon_calls(&owner, self.clock.now()).await?;
            if given_up > 0 {
                tracing::warn!(
                    calls = given_up,
                    "a gateway is gone that ran calls which are kept: their outcome is unknown"
                );
            }
            if self.closing.is_cancelled() {
                continue;
            }
            let claimed = self.store.claim_calls(&owner, &self.owners.me, CLAIMED_MAX).await?;
            for call in claimed {
                self.take_up(call).await;
            }
        }
        Ok(())
    }

    /// Finds calls of this gateway that none of its tasks has: the store had confirmed nothing, and
    /// kept them all the same.
    async fn find_lost(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let before = now - i64::try_from(LOST_AFTER.as_millis()).unwrap_or(i64::MAX);
        for (id, state) in self.store.open_calls(&self.owners.me, before, OPEN_MAX).await? {
            match state {
                _ if self.open.by_id(id).is_some() => {}
                CallState::Accepted => self.store.hand_over_call(id, &self.owners.me).await?,
                _ => self.store.abandon_call(id, &self.owners.me, now).await?,
            }
        }
        Ok(())
    }

    async fn evict(&self, account: &Account) -> Result<(), StoreError> {
        let max = i64::try_from(self.config.max_bytes).unwrap_or(i64::MAX);
        for _ in 0..STEPS_MAX {
            let excess = account.bytes() - max;
            if excess <= 0 {
                break;
            }
            let after = *account.evicted_until.lock();
            let evicted =
                self.store.evict_results(&self.owners.me, &account.tenant, after, excess).await?;
            account.add(0, -evicted.bytes);
            // From the oldest again, if this was the latest.
            *account.evicted_until.lock() = evicted.last;
            if evicted.last.is_none() {
                break;
            }
            sleep(STEP_PAUSE).await;
        }
        Ok(())
    }
}
