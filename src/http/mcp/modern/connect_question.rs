//! Asks a modern client to open a page for its user (URL elicitation), at which the user connects
//! the tenant to a server. The client then sends its request again.

use serde_json::json;

use super::request_state::RequestState;
use crate::protocol::mcp::params::Params;
use crate::protocol::mcp::{meta, method};

/// The state of a client that was asked.
const STATE: &str = "trunkline/connect";
/// The name of the question in `inputRequests`.
const QUESTION: &str = "trunkline/connect";

/// Returns whether a client can open a page for its user: it says so, and its user has not refused.
pub(crate) fn can_be_asked(params: &Params<'_>, method: &str) -> bool {
    let is_asking =
        [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ].contains(&method);
    let says_so = || {
        let capabilities = params.meta(meta::CLIENT_CAPABILITIES)?;
        let capabilities: serde_json::Value = serde_json::from_str(capabilities.get()).ok()?;
        capabilities.pointer("/elicitation/url")?.is_object().then_some(())
    };
    is_asking && says_so().is_some() && !has_refused(params)
}

/// Returns whether a client's user was asked, and does not want to.
pub(crate) fn has_refused(params: &Params<'_>) -> bool {
    let responses = params.get("inputResponses");
    let responses: Option<serde_json::Value> =
        responses.and_then(|responses| serde_json::from_str(responses.get()).ok());
    responses.is_some_and(|responses| responses[QUESTION]["action"] != "accept")
}

/// Returns whether a client comes back from this question.
pub(crate) fn is_answered(state: &str) -> bool {
    state == STATE
}

/// Writes the result that asks.
pub(crate) fn result(state: &RequestState, message: &str, url: &str) -> Option<String> {
    let question = json!({"mode": "url", "message": message, "url": url});
    let requests = json!({QUESTION: {"method": "elicitation/create", "params": question}});
    let state = state.seal(STATE)?;
    let result = json!({
        "resultType": "input_required",
        "inputRequests": requests,
        "requestState": state,
    });
    Some(result.to_string())
}
