//! Copies the trace of an HTTP request (W3C Trace Context) into `_meta`: stdio has no headers.

use axum::http::HeaderMap;

use crate::protocol::mcp::{meta, trace};

/// Returns the members of `_meta`, `,"name":value` each; empty without a valid trace.
pub(super) fn members(headers: &HeaderMap) -> String {
    let all = |name| headers.get_all(name).iter().map(|value| value.to_str().ok());
    // Several parents are ambiguous; the state may be a list on several lines.
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
