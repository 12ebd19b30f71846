//! The wire formats alone: fuzzing them should not take the time to build the whole gateway.

#[path = "../../src/jsonrpc/mod.rs"]
pub mod jsonrpc;
#[path = "../../src/mcp/mod.rs"]
pub mod mcp;
#[path = "../../src/backend/http/sse.rs"]
pub mod sse;
