//! The Model Context Protocol as the gateway needs it: versions, the messages it sends itself, and the
//! few fields of answers that it reads. Pure: no I/O, no clock.
//!
//! MCP has two eras. A *legacy* server (2024-11-05 to 2025-11-25) is opened by an `initialize`
//! handshake; a *modern* one (2026-07-28) is stateless and wants version and capabilities with every
//! request. A server's era is found out when it starts ([`version`]) and decides how requests to it are
//! written ([`requests`]).

pub mod requests;
pub mod results;
pub mod version;

pub use version::{Era, ProtocolVersion};

/// How the gateway and the bundled server call themselves in handshakes.
pub const IMPLEMENTATION_NAME: &str = "trunkline";
/// The version they give with it.
pub const IMPLEMENTATION_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Method names, spelled once.
pub mod method {
    /// Modern: what a server supports.
    pub const DISCOVER: &str = "server/discover";
    /// Modern: opens a stream of notifications.
    pub const LISTEN: &str = "subscriptions/listen";
    /// Legacy: opens the session.
    pub const INITIALIZE: &str = "initialize";
    /// Legacy: closes the handshake.
    pub const INITIALIZED: &str = "notifications/initialized";
    /// Legacy: are you there.
    pub const PING: &str = "ping";
    /// The tools a server has.
    pub const TOOLS_LIST: &str = "tools/list";
    /// Runs a tool.
    pub const TOOLS_CALL: &str = "tools/call";
    /// The sender no longer wants an answer.
    pub const CANCELLED: &str = "notifications/cancelled";
    /// The tools have changed.
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
    /// A log line for whoever runs the server.
    pub const LOG_MESSAGE: &str = "notifications/message";
}

/// `_meta` keys, spelled once.
pub mod meta {
    /// Modern: the version a request is written in.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// Modern: what the client can do.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Modern: who the client is.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// Modern: who the server is.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// Modern: the `subscriptions/listen` request a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
}

/// Modern: the server does not speak the version of the request.
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
