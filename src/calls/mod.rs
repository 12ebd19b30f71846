//! Calls that are more than one request and one answer.
//!
//! - [`batch`]: many calls at once, which may use each other's results

pub mod batch;
