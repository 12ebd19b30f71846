//! Trunkline: an MCP gateway. Many tenants' tool calls, arriving over HTTP, share a few long-lived MCP
//! servers; each caller gets its own answer, and no caller can hold up the others.
//!
//! # Map

pub mod config;
pub mod ids;
pub mod jsonrpc;
pub mod mcp;
