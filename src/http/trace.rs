//! The trace that an HTTP request belongs to (W3C Trace Context), for the `_meta` of what goes on to a server: over
//! stdio there are no headers.

use axum::http::HeaderMap;

use crate::mcp::{meta, trace};

/// The members of `_meta`, `,"name":value` each; nothing if there is no valid trace.
pub(super) fn members(headers: &HeaderMap) -> String {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(traceparent) = header(meta::TRACEPARENT).and_then(trace::traceparent) else {
        return String::new();
    };
    let mut members = format!(",\"{}\":\"{traceparent}\"", meta::TRACEPARENT);
    if let Some(tracestate) = header(meta::TRACESTATE).and_then(trace::tracestate) {
        members += &format!(",\"{}\":{tracestate}", meta::TRACESTATE);
    }
    members
}
