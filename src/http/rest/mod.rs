//! The REST API: tool calls, batches of them, the servers that a caller may use, a
//! tenant's own secrets.

pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod secrets;
pub(crate) mod server_view;
pub(crate) mod servers;
