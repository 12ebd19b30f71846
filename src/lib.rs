//! Trunkline: an MCP gateway. Many tenants' tool calls, arriving over HTTP, share a few long-lived
//! MCP servers; each caller gets its own answer, and no caller can hold up the others.
//!
//! # Map
//!
//! A call comes in at the top and goes down; nothing below knows what is above it.
//!
//! - [`cli`]: the command line, one file per command
//! - [`app`]: puts the gateway together and runs it: build, serve, reload, background work,
//!   shutdown
//! - [`http`]: requests in, responses out
//! - [`calls`]: calls that are kept, under a key or answered later; batches of calls
//! - [`gateway`]: the path of a call, and its errors
//! - [`trunk`]: who is on the trunk now, and was a while ago, for the live page
//! - [`registry`]: the servers by id, and whose backend a caller gets
//! - [`backend`]: one server, running: its queue, its instances, their connections
//! - [`tenants`]: whose call it is: directory, limits, secrets, OAuth, usage
//! - [`oauth`]: access tokens for servers, as a client of their authorization server
//! - [`cluster`]: the other replicas, and requests between them
//! - [`store`]: the database; the only place with SQL
//! - [`protocol`]: JSON-RPC and MCP messages, pure
//! - [`events`]: what happens, told once, to those who want to hear it
//! - [`pins`]: tool definitions, compared and approved
//! - [`config`]: what is configured, checked, with its defaults
//! - [`toolsets`]: named selections of tools, under names of their own
//! - [`telemetry`]: logs and metrics
//! - [`otel`]: traces, metrics and the call log, to a collector
//! - [`common`]: used by all, uses nobody
//! - [`std_server`]: the bundled MCP server

// Futures of connections hold the HTTP clients that ask for tokens, many types deep.
#![recursion_limit = "256"]
// A macro that prints panics without a reader, and waits for one that does not read. Commands have
// `cli::output` and `telemetry::logging::print_line`.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod app;
pub mod backend;
pub mod calls;
pub mod cli;
pub mod cluster;
pub mod common;
pub mod config;
pub mod events;
pub mod gateway;
pub mod http;
pub mod oauth;
pub mod otel;
pub mod pins;
pub mod protocol;
pub mod registry;
pub mod std_server;
pub mod store;
pub mod telemetry;
pub mod tenants;
pub mod toolsets;
pub mod trunk;
