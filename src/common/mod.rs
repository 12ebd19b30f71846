//! Types and functions that every other module may use, and that use none of them.

pub mod allocator;
pub mod byte_budget;
pub mod checked_address;
pub mod decimal;
pub mod error_chain;
pub mod ids;
pub mod in_words;
pub mod keys;
pub mod limit_use;
pub mod offload;
pub mod policy;
pub mod seal;
pub mod secret;
pub mod suggest;
pub mod tenant_quota;
#[cfg_attr(not(target_os = "linux"), path = "usual_time_slice.rs")]
pub mod time_slice;
pub mod usage;
