//! `logging/setLevel` of the legacy era.

use std::sync::Arc;

use super::{EMPTY, own_backends, with_rate_status};
use crate::gateway::Call;
use crate::http::mcp::McpRequest;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::Session;
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::{LogLevel, method};
use crate::tenants::limits::Cost;

/// Keeps the level in all replicas, since calls run in any of them. Only servers of the session's
/// own are told: shared ones have one level for everybody.
pub(super) async fn set_log_level(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let (http, caller) = (request.http, request.caller);
    let Some(level) = LogLevel::parse(&request.params.text("level")?) else {
        let expected = "a log level, such as \"info\"";
        return Err(ParamsError::WrongType { at: "params.level".into(), expected }.into());
    };
    let kept = session.set_log_level(level, &http.app.stream_quota);
    kept.map_err(|error| with_rate_status(error, caller))?;
    http.notify_log_level(session, level).await;
    for backend in own_backends(http, session) {
        let params = format!(",\"level\":\"{}\"", level.as_str());
        let Ok(server) = http.app.gateway.server(caller, backend.id().as_str()) else { continue };
        let deadline = http.arrived + backend.timeout();
        let call = Call::plain(server, method::SET_LOG_LEVEL, params, deadline);
        let Ok(admission) = caller.tenant.admit(Cost::Call).await else { continue };
        // A server without log levels may refuse.
        let _ = http.app.gateway.call(caller, admission, &call).await;
    }
    Ok(EMPTY.to_owned())
}
