//! The REST API: tool calls, kept calls, batches of calls, the servers that a caller may use, a
//! tenant's own secrets.

pub(crate) mod asked;
pub(crate) mod batch;
pub(crate) mod call;
mod call_events;
pub(crate) mod calls;
pub(crate) mod connect;
pub(crate) mod explain;
mod kept;
pub(crate) mod limits;
pub(crate) mod recent;
pub(crate) mod secrets;
pub(crate) mod server_view;
pub(crate) mod servers;
pub(crate) mod toolsets;
