//! The wire formats only, so that fuzzing does not need a build of the whole gateway.

#[path = "../../src/protocol/mod.rs"]
pub mod protocol;
#[path = "../../src/backend/http/sse.rs"]
pub mod sse;
