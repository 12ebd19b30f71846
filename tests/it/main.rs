//! The whole gateway from the outside: HTTP in front, real processes behind.
//!
//! `support` has the gateway to test, the server that misbehaves on demand, and the program as a process.
//! Nothing here waits a fixed time for something to happen: see `support::eventually`.

// Clippy allows it in tests, but takes only functions marked as such for tests.
#![allow(clippy::unwrap_used)]

mod support;

mod admin;
mod calls;
mod cancel;
mod cli;
mod drain;
mod edge;
mod errors;
mod failures;
mod fidelity;
mod grants;
mod handshake;
mod hardening;
mod hidden;
mod http_backend;
mod http_backend_failures;
mod http_backend_real;
mod keys;
mod limits_away;
mod limits_shared;
mod mcp_cancel;
mod mcp_during;
mod mcp_eras;
mod mcp_headers;
mod mcp_isolation;
mod mcp_legacy;
mod mcp_listen;
mod mcp_modern;
mod mcp_own_process;
mod mcp_params;
mod mcp_questions;
mod mcp_session_streams;
mod mcp_sessions;
mod mcp_streams;
mod mcp_subscriptions;
mod mcp_together;
mod misbehaving;
mod oauth;
mod oauth_callers;
mod oauth_keys;
mod ops;
mod outage;
mod per_tenant;
mod per_tenant_change;
mod per_tenant_reload;
mod pins;
mod pins_approved;
mod pins_reload;
mod pins_replicas;
mod pool;
mod process;
mod real_servers;
mod reload;
mod reload_files;
mod reload_listeners;
mod reload_tenants;
mod reload_under_load;
mod retries;
mod sandbox;
mod secrets;
mod secrets_cli;
mod secrets_hidden;
mod secrets_store;
mod secrets_turns;
mod sharing;
mod signals;
mod store;
mod store_changes;
mod store_keys;
mod store_load;
mod store_opening;
mod store_outage;
mod store_pins;
mod store_usage;
mod supervision;
mod tenant_limits;
mod tenants_cli;
mod tools;
mod usage;
mod web;
