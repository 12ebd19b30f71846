//! Trunkline: an MCP gateway. Many tenants' tool calls, arriving over HTTP, share a few long-lived MCP
//! servers; each caller gets its own answer, and no caller can hold up the others.
//!
//! # Map
//!
//! A call comes in at the top and goes down; nothing below knows what is above it.
//!
//! - [`cli`]: the command line, one file per subcommand
//! - [`app`]: the gateway put together: build, serve, shut down
//! - [`reload`]: the configuration, read again while it runs
//! - [`tenancy`]: what knows tenants, put together
//! - [`http`]: requests in, responses out
//! - [`gateway`]: the path of a call, and everything that can go wrong with it
//! - [`tenant`]: whose call it is
//! - [`registry`]: the servers by id
//! - [`backend`]: one server: its queue, its process, its shared connection
//! - [`mcp`], [`jsonrpc`]: the wire formats, pure
//! - [`std_server`]: the bundled MCP server
//! - [`secrets`]: what tenants give to servers of their own, sealed
//! - [`replicas`]: other gateways that stand for the same one, and how they are reached
//! - [`seal`]: texts that clients carry and cannot read or change
//! - [`limits`]: how much tenants may do, kept, in memory or by all replicas together
//! - [`store`]: tenants, keys, usage, pins and the audit log in a database; the only place with SQL
//! - [`keys`]: API keys and their hashes
//! - [`oauth`]: tokens of an identity provider
//! - [`policy`]: what a tenant may do
//! - [`pins`]: definitions of tools, to be compared and shown
//! - [`ids`]: names, parsed once
//! - [`aside`], [`config`], [`scheduling`], [`telemetry`], [`shutdown`]: used from above, use nobody (but [`config`] uses [`ids`] and [`policy`])

pub mod app;
pub mod aside;
pub mod backend;
pub mod cli;
pub mod config;
pub mod gateway;
pub mod http;
pub mod ids;
pub mod jsonrpc;
pub mod keys;
pub mod limits;
pub mod mcp;
pub mod oauth;
pub mod pins;
pub mod policy;
pub mod registry;
pub mod reload;
pub mod replicas;
pub mod scheduling;
pub mod seal;
pub mod secrets;
pub mod shutdown;
pub mod std_server;
pub mod store;
pub mod telemetry;
pub mod tenancy;
pub mod tenant;
