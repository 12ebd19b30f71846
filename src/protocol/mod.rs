//! The wire formats: JSON-RPC and MCP messages. Pure: no I/O, no clock, no tokio.

pub mod jsonrpc;
pub mod mcp;
