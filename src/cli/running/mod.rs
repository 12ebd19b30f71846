//! Commands that ask a running gateway, over HTTP.
//!
//! - [`client`]: sends requests, and explains refusals
//! - [`call`], with its [`arguments`]; the other commands show one report each
//! - [`top`] shows the trunk while it changes, as [`trunk_view`] draws it
//! - [`times`]: times and durations, read and shown

mod arguments;
pub(super) mod audit;
pub(super) mod call;
pub(super) mod calls;
mod client;
pub(super) mod explain;
pub(super) mod servers;
pub(super) mod status;
mod times;
pub(super) mod tools;
pub(super) mod top;
mod trunk_view;
pub(super) mod usage;

pub(super) use self::client::gateway_url;
