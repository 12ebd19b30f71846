//! Asks the store about sessions of which this replica does not know whether they have ended: those
//! from before it started, and those that were too many to remember.

use axum::http::StatusCode;
use serde_json::json;
use tokio::sync::SemaphorePermit;

use super::sessions::{NoSession, SessionInUse, UnknownSession};
use crate::http::AppState;
use crate::http::auth::store_quota;
use crate::http::mcp::Scope;
use crate::http::mcp::legacy::session_not_found;
use crate::http::mcp::rpc::RpcError;
use crate::tenants::Tenant;

/// Queries at once: fewer than connections, so that others find one.
pub(crate) const QUERIES_MAX: usize = 2;
const RETRY_AFTER_MS: u64 = 1000;

impl AppState {
    /// Returns the session of a token for one request. Asks the store once about a session that is
    /// unknown here. If the store cannot be asked, the answer is 503, never access.
    pub(in crate::http) async fn session(
        &self,
        tenant: &Tenant,
        scope: &Scope,
        token: &str,
    ) -> Result<SessionInUse<'_>, RpcError> {
        let acquire = || self.sessions.acquire(tenant, scope, token);
        match acquire() {
            Err(NoSession::Unknown(_)) => {}
            known => return known.map_err(RpcError::from),
        }
        let _permits = self.query_permits(tenant).await?;
        // Another request of the session may have asked meanwhile.
        match acquire() {
            Err(NoSession::Unknown(unknown)) => self.ask(&unknown).await?,
            known => return known.map_err(RpcError::from),
        }
        acquire().map_err(RpcError::from)
    }

    /// Returns the session of a token, to be ended. If the store is not to be asked or cannot be,
    /// the session counts as one that has not ended: ending it twice does no harm.
    pub(in crate::http) async fn session_to_end(
        &self,
        tenant: &Tenant,
        scope: &Scope,
        token: &str,
        may_ask: bool,
    ) -> Result<SessionInUse<'_>, RpcError> {
        let acquire = || self.sessions.acquire(tenant, scope, token);
        let unknown = match acquire() {
            Err(NoSession::Unknown(unknown)) => unknown,
            known => return known.map_err(RpcError::from),
        };
        let is_asked = may_ask && {
            let permits = self.query_permits(tenant).await;
            permits.is_ok() && self.ask(&unknown).await.is_ok()
        };
        if !is_asked {
            self.sessions.settle(&unknown, false);
        }
        acquire().map_err(RpcError::from)
    }

    /// Waits for the tenant's own permit, then for one of those that all share: a tenant with many
    /// unknown sessions does not keep others waiting.
    async fn query_permits<'a>(
        &'a self,
        tenant: &'a Tenant,
    ) -> Result<[SemaphorePermit<'a>; 2], RpcError> {
        let own = store_quota::wait(&tenant.store_permits).await.map_err(|_| not_known_now())?;
        Ok([own, store_quota::wait(&self.session_queries).await?])
    }

    async fn ask(&self, unknown: &UnknownSession) -> Result<(), RpcError> {
        let ended = self.store.has_session_ended(&unknown.id).await.map_err(|error| {
            tracing::debug!(%error, "the store cannot be asked about a session");
            not_known_now()
        })?;
        self.sessions.settle(unknown, ended);
        Ok(())
    }
}

impl From<NoSession> for RpcError {
    fn from(no_session: NoSession) -> Self {
        match no_session {
            NoSession::NotFound => session_not_found(),
            // The store's answer was displaced by others before it was used.
            NoSession::Unknown(_) => not_known_now(),
        }
    }
}

/// The session is not lost: the client asks again, and need not open another.
fn not_known_now() -> RpcError {
    let message = "whether the session has ended is not known now; try again soon";
    let code = StatusCode::SERVICE_UNAVAILABLE.as_u16();
    RpcError::new(code.into(), message).with_data(&json!({
        "code": "auth_unavailable",
        "retryable": true,
        "executed": "no",
        "retryAfterMs": RETRY_AFTER_MS,
    }))
}
