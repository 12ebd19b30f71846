//! Streams of events to MCP clients: how they are written, counted, fed with changes, and relayed
//! from another replica.

pub(crate) mod changes;
pub(crate) mod relay_response;
pub(crate) mod stream_quota;
