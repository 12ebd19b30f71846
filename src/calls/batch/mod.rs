//! Batches: many calls in one request, with dependencies and references to earlier results.
//!
//! - [`request`]: reads and checks the request; nothing runs before all of it is right
//! - [`references`]: puts parts of results into arguments
//! - [`graph`]: which call waits for which
//! - [`run`]: starts each call when its turn has come

mod graph;
mod references;
pub mod request;
pub mod run;
