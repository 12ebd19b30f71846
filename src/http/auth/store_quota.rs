//! Bounds the requests that read or write the store, so that key look-ups always find a connection.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::common::limit_use::LimitUse;
use crate::gateway::{CallError, Caller};
use crate::tenants::limits::{Admission, Cost};

/// The longest wait for a permit.
const PERMIT_WAIT: Duration = Duration::from_secs(1);

/// The permits that a tenant's request holds while it uses the store.
pub(crate) struct StorePermit<'a> {
    _admission: Admission,
    _own: SemaphorePermit<'a>,
    _shared: SemaphorePermit<'a>,
}

impl<'a> StorePermit<'a> {
    /// Charges the request to the tenant's limits like a call, since it costs more than one. Then
    /// waits for the tenant's own permit (one at a time) and for one of those that all share.
    /// `server` is the server that the request is about, or empty.
    pub(crate) async fn of(
        permits: &'a Semaphore,
        caller: &'a Caller,
        server: &str,
    ) -> Result<Self, CallError> {
        let tenant = &caller.tenant;
        let mut admission = tenant.admit(Cost::Call).await?;
        tenant.limits.admit_to(&mut admission, server, None).await?;
        let own = wait(&tenant.store_permits).await.map_err(|_| CallError::TenantBusy {
            detail: "another request of yours uses the store; wait until it is done".into(),
            limit: LimitUse::reached("store_requests", 1).into(),
            rate_status: admission.take_rate_status(),
        })?;
        Ok(Self { _admission: admission, _own: own, _shared: wait(permits).await? })
    }
}

/// Waits for a permit of a limit that all share.
pub(crate) async fn wait(permits: &Semaphore) -> Result<SemaphorePermit<'_>, CallError> {
    match timeout(PERMIT_WAIT, permits.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(CallError::Overloaded),
    }
}
