//! The wire formats alone: fuzzing them should not take the time to build the whole gateway.

#[path = "../../src/protocol/mod.rs"]
pub mod protocol;
#[path = "../../src/backend/http/sse.rs"]
pub mod sse;
