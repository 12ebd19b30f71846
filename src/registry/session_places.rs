//! The places of `max_sessions`, divided among tenants.
//!
//! Sessions take places as calls take slots (`backend/queue`): a quarter is a reserve at all times,
//! which tenants that hold few divide, and its last place is for a tenant that holds none. With two
//! or three places, the last one is kept, too. Nobody borrows it, since a session has no deadline.
//!
//! A tenant that finds no place may get that of a session without requests.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::per_session::{NoBackend, SessionProcess};
use crate::backend::queue::{part_of_reserve, reserved_of};
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::common::limit_use::LimitUse;
use crate::config::ServerConfig;

/// The places that are taken, from one tenant's view.
struct Places<'a> {
    max: u32,
    tenant: &'a TenantId,
    held: u32,
    taken: u32,
    by_tenant: HashMap<&'a TenantId, u32>,
}

/// Ensures that there is a place for another session of a tenant. If need be, ends a session that
/// has no request.
pub(super) fn ensure_place(
    processes: &HashMap<SessionId, SessionProcess>,
    tenant: &TenantId,
    (server, config): (&ServerId, &ServerConfig),
) -> Result<(), NoBackend> {
    let staying: Vec<_> = processes.values().filter(|process| process.stays()).collect();
    let places = Places::new(&staying, tenant, config.max_sessions);
    if places.has_room() {
        return Ok(());
    }
    let idle_timeout = config.idle_timeout;
    let ranked = staying.iter().filter_map(|it| Some((places.rank(it, idle_timeout)?, it)));
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    // A session may just have been called.
    let ended = ranked.iter().find(|(rank, process)| {
        let client = &process.owner.client;
        match rank.claim {
            EvictionClaim::Own => client.end_if_inactive(),
            _ => client.end_if_no_request(),
        }
    });
    match ended {
        Some((_, process)) => process.stop.cancel(),
        None if places.is_full() => {
            return Err(NoBackend::TenantFull(places.limit_use().of(server)));
        }
        None => return Err(NoBackend::TooMany),
    }
    Ok(())
}

/// Returns the limit of a tenant's sessions, and those that it has.
pub(super) fn limit_use(
    processes: &HashMap<SessionId, SessionProcess>,
    tenant: &TenantId,
    (server, config): (&ServerId, &ServerConfig),
) -> LimitUse {
    let staying: Vec<_> = processes.values().filter(|process| process.stays()).collect();
    Places::new(&staying, tenant, config.max_sessions).limit_use().of(server)
}

/// The order in which sessions are ended: by claim, and then those first that were silent longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    claim: EvictionClaim,
    silent_since: Instant,
}

/// Why a session's place may be given to another session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionClaim {
    /// Both are of one tenant, and the old one has no stream.
    Own,
    /// Its tenant has more than its share, and the other tenant has less.
    AboveShare,
    /// There are more tenants than places, and the session has been silent for `idle_timeout`.
    Silent,
}

impl<'a> Places<'a> {
    fn new(staying: &[&'a SessionProcess], tenant: &'a TenantId, max: u32) -> Self {
        let mut by_tenant = HashMap::from([(tenant, 0)]);
        for process in staying {
            *by_tenant.entry(&process.owner.tenant).or_default() += 1;
        }
        let taken = by_tenant.values().sum();
        Self { max, tenant, held: by_tenant[tenant], taken, by_tenant }
    }

    /// Returns whether a free place is open to the tenant.
    fn has_room(&self) -> bool {
        let reserved = reserved_of(self.max);
        let free = self.max.saturating_sub(self.taken);
        let part = part_of_reserve(reserved, self.by_tenant.len() as u32);
        free > reserved || free > 0 && self.held == 0 || free > 1 && self.held < part
    }

    /// Returns the places that each tenant may have if all want many.
    fn share(&self) -> u32 {
        let reserved = reserved_of(self.max);
        let open_to_all = self.max - reserved.min(1);
        (open_to_all / self.by_tenant.len() as u32).clamp(1, self.max - reserved)
    }

    /// Returns whether the tenant has as many places as it may.
    fn is_full(&self) -> bool {
        self.held >= self.share()
    }

    fn limit_use(&self) -> LimitUse {
        LimitUse::new("sessions", self.share() as usize, self.held as usize)
    }

    /// Returns the rank of a session that may be ended for the tenant. `None` for others, and for
    /// one that has a request.
    fn rank(&self, process: &SessionProcess, idle_timeout: Duration) -> Option<Rank> {
        let client = &process.owner.client;
        let silent_since = client.silent_since()?;
        let (theirs, share) = (&process.owner.tenant, self.share());
        let claim = if theirs == self.tenant {
            client.inactive_since().map(|_| EvictionClaim::Own)
        } else if self.held < share && self.by_tenant[theirs] > share {
            Some(EvictionClaim::AboveShare)
        } else {
            let is_left = self.held == 0 && silent_since.elapsed() >= idle_timeout;
            is_left.then_some(EvictionClaim::Silent)
        };
        Some(Rank { claim: claim?, silent_since })
    }
}

#[cfg(test)]
#[path = "tests/session_places.rs"]
mod tests;
