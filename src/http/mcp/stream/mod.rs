//! Streams of events to MCP clients: how they are written, counted and passed on.

pub(crate) mod relay_response;
pub(crate) mod sse;
pub(crate) mod sse_progress;
pub(crate) mod stream_quota;
pub(crate) mod visible_servers;
