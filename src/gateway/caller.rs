//! The caller of a request, and the lifetime of its rights.

use std::future::pending;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::registry::SessionOwner;
use crate::tenants::Tenant;

#[derive(Clone)]
pub struct Caller {
    /// The tenant whose limits and rights apply.
    pub tenant: Arc<Tenant>,
    /// The MCP session of the call, if any. A server with `sharing = "session"` needs one.
    pub session: Option<SessionOwner>,
    pub credential: CredentialLifetime,
}

/// The lifetime of a caller's credential. A stream must end with it, and be asked for again.
#[derive(Clone)]
pub struct CredentialLifetime {
    /// Cancelled when the key is revoked or the tenant changes.
    pub gone: CancellationToken,
    /// The time at which the key or token expires.
    pub until: Option<Instant>,
}

impl CredentialLifetime {
    /// Waits until the rights have changed or expired.
    pub async fn ended(&self) {
        let expired = async {
            match self.until {
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.gone.cancelled() => {}
            () = expired => {}
        }
    }
}

impl Caller {
    /// Returns a caller for `tenant` outside of any session.
    pub fn of(tenant: Arc<Tenant>) -> Self {
        let credential = CredentialLifetime { gone: tenant.gone.clone(), until: None };
        Self { tenant, session: None, credential }
    }
}
