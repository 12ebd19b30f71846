//! The trace that an HTTP request belongs to (W3C Trace Context), for the `_meta` of what goes on to a server: over
//! stdio there are no headers.

use axum::http::HeaderMap;

use crate::protocol::mcp::{meta, trace};

/// The members of `_meta`, `,"name":value` each; nothing if there is no valid trace.
pub(super) fn members(headers: &HeaderMap) -> String {
    let all = |name| headers.get_all(name).iter().map(|value| value.to_str().ok());
    // Of several parents none is the right one; the state may be a list on several lines.
    let mut parents = all(meta::TRACEPARENT);
    let (Some(Some(parent)), None) = (parents.next(), parents.next()) else { return String::new() };
    let Some(traceparent) = trace::traceparent(parent) else { return String::new() };
    let mut members = format!(",\"{}\":\"{traceparent}\"", meta::TRACEPARENT);
    let state: Option<Vec<&str>> = all(meta::TRACESTATE).collect();
    if let Some(tracestate) = state.and_then(|state| trace::tracestate(&state.join(","))) {
        members += &format!(",\"{}\":{tracestate}", meta::TRACESTATE);
    }
    members
}
