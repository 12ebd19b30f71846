//! Turns at the store, for requests that need it: those who follow changes and look up keys need it more.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::gateway::{CallError, Caller};
use crate::limits::Admission;

/// How long a request waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(1);

/// What a tenant's request holds as long as it is at the store.
pub(super) struct Turn<'a> {
    _admission: Admission,
    _permit: SemaphorePermit<'a>,
}

impl<'a> Turn<'a> {
    /// Takes the request from the tenant's limits like a call, since it costs more than one, and waits until there is room
    /// at the store. `server` is what it is about; empty if it is about none.
    pub(super) async fn of(
        turns: &'a Semaphore,
        caller: &Caller,
        server: &str,
    ) -> Result<Self, CallError> {
        let limits = &caller.tenant.limits;
        let mut admission = limits.enter().await?;
        limits.admit(&mut admission, server, None).await?;
        Ok(Self { _admission: admission, _permit: wait(turns).await? })
    }
}

/// A turn that is nobody's limit.
pub(super) async fn wait(turns: &Semaphore) -> Result<SemaphorePermit<'_>, CallError> {
    match timeout(TURN_WAIT, turns.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(CallError::Overloaded),
    }
}
