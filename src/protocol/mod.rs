//! The wire formats, pure: JSON-RPC messages and what MCP puts into them. Nothing here waits or
//! knows of tokio.

pub mod jsonrpc;
pub mod mcp;
