//! Calls that are more than one request and one answer.
//!
//! - [`batch`]: many calls at once, which may use each other's results
//! - [`callback`]: tells a caller that its call has ended

pub mod batch;
pub mod callback;
