//! Lists of the skills of a pinned server.

use super::McpRequest;
use crate::backend::Ready;
use crate::registry::Server;

/// Leaves out skills that are not approved. The server may list others than it did before: then it
/// is asked again, so that the operator hears of it.
pub(super) async fn approved(
    request: &McpRequest<'_>,
    server: &Server,
    ready: &Ready,
    mut entries: Vec<String>,
) -> Vec<String> {
    if !server.config().pin {
        return entries;
    }
    let (offload, tenant) = (request.http.app.gateway.offload(), &request.caller.tenant);
    let (len, listed) = (entries.iter().map(String::len).sum(), entries.len());
    let leave_out = || {
        entries.retain(|entry| ready.tools.skills.is_approved(entry));
        entries
    };
    let approved = offload.in_place(&tenant.long_work, len, leave_out).await;
    if approved.len() != listed {
        ready.connection.note_tools_changed();
    }
    approved
}
