//! Asks the store about sessions of which this replica does not know whether they have ended: those
//! from before it started, and those that were too many to remember.

use axum::http::StatusCode;
use serde_json::json;

use super::sessions::{NoSession, SessionInUse, UnknownSession};
use crate::common::ids::TenantId;
use crate::http::AppState;
use crate::http::auth::store_quota;
use crate::http::mcp::Scope;
use crate::http::mcp::legacy::session_not_found;
use crate::http::mcp::rpc::RpcError;

/// Queries at once: fewer than connections, so that others find one.
pub(crate) const QUERIES_MAX: usize = 2;
const RETRY_AFTER_MS: u64 = 1000;

impl AppState {
    /// Returns the session of a token for one request. Asks the store once about a session that is
    /// unknown here. If the store cannot be asked, the answer is 503, never access.
    pub(in crate::http) async fn session(
        &self,
        tenant: &TenantId,
        scope: &Scope,
        token: &str,
    ) -> Result<SessionInUse<'_>, RpcError> {
        if let Err(NoSession::Unknown(unknown)) = self.sessions.acquire(tenant, scope, token) {
            self.ask(&unknown).await?;
        }
        self.sessions.acquire(tenant, scope, token).map_err(|_| session_not_found())
    }

    /// Returns the session of a token, to be ended. If the store cannot be asked, the session
    /// counts as one that has not ended: ending it twice does no harm.
    pub(in crate::http) async fn session_to_end(
        &self,
        tenant: &TenantId,
        scope: &Scope,
        token: &str,
    ) -> Result<SessionInUse<'_>, RpcError> {
        if let Err(NoSession::Unknown(unknown)) = self.sessions.acquire(tenant, scope, token)
            && self.ask(&unknown).await.is_err()
        {
            self.sessions.settle(&unknown, false);
        }
        self.sessions.acquire(tenant, scope, token).map_err(|_| session_not_found())
    }

    async fn ask(&self, unknown: &UnknownSession) -> Result<(), RpcError> {
        let _permit = store_quota::wait(&self.session_queries).await?;
        let ended = self.store.has_session_ended(&unknown.id).await.map_err(|error| {
            tracing::debug!(%error, "the store cannot be asked about a session");
            not_known_now()
        })?;
        self.sessions.settle(unknown, ended);
        Ok(())
    }
}

/// The session is not lost: the client asks again, and need not open another.
fn not_known_now() -> RpcError {
    let message = "the store cannot be asked now whether the session has ended; try again soon";
    let code = StatusCode::SERVICE_UNAVAILABLE.as_u16();
    RpcError::new(code.into(), message).with_data(&json!({
        "code": "auth_unavailable",
        "retryable": true,
        "executed": "no",
        "retryAfterMs": RETRY_AFTER_MS,
    }))
}
