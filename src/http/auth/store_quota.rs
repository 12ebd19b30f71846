//! Turns at the store, for requests that need it: those who follow changes and look up keys need it more.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::gateway::{CallError, Caller};
use crate::tenants::limits::Admission;

/// How long a request waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(1);

/// What a tenant's request holds as long as it is at the store.
pub(crate) struct Turn<'a> {
    _admission: Admission,
    _own: SemaphorePermit<'a>,
    _of_all: SemaphorePermit<'a>,
}

impl<'a> Turn<'a> {
    /// Takes the request from the tenant's limits like a call, since it costs more than one, and waits until the tenant's
    /// others are done, and there is room at the store. `server` is what it is about; empty if it is about none.
    pub(crate) async fn of(
        turns: &'a Semaphore,
        caller: &'a Caller,
        server: &str,
    ) -> Result<Self, CallError> {
        let limits = &caller.tenant.limits;
        let mut admission = limits.admit_tenant().await?;
        let rate_status = limits.admit(&mut admission, server, None).await?;
        let own = wait(&caller.tenant.store_permits).await.map_err(|_| CallError::TenantBusy {
            detail: "another request of yours is at the store: wait until it is done".into(),
            rate_status,
        })?;
        Ok(Self { _admission: admission, _own: own, _of_all: wait(turns).await? })
    }
}

/// A turn that is nobody's limit.
pub(crate) async fn wait(turns: &Semaphore) -> Result<SemaphorePermit<'_>, CallError> {
    match timeout(TURN_WAIT, turns.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(CallError::Overloaded),
    }
}
