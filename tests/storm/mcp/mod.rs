//! Calls made over HTTP, as MCP clients of both eras make them: all with the same ids and the same
//! progress tokens.
//!
//! - [`fronts`]: the gateway served once for each tenant
//! - [`client`]: one client with its sessions
//! - [`listener`]: a client that subscribes to its tenant's resource, and calls nothing
//! - [`request`]: what it sends, [`wire`]: one connection, [`message`]: what comes back

mod client;
pub mod fronts;
pub mod listener;
mod message;
mod request;
mod wire;

pub use client::Client;
