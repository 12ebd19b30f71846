//! Types and functions that every other module may use, and that use none of them.

pub mod byte_budget;
pub mod error_chain;
pub mod ids;
pub mod keys;
pub mod limit_use;
pub mod millis;
pub mod offload;
pub mod policy;
pub mod seal;
pub mod secret;
pub mod tenant_quota;
pub mod time_slice;
pub mod usage;
