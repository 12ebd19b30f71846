//! The Model Context Protocol as the gateway needs it: versions, the messages it sends itself, and the
//! few fields of answers that it reads. Pure: no I/O, no clock.
//!
//! MCP has two eras. A *legacy* server (2024-11-05 to 2025-11-25) is opened by an `initialize`
//! handshake; a *modern* one (2026-07-28) is stateless and wants version and capabilities with every
//! request. A server's era is found out when it starts ([`version`]) and decides how requests to it are
//! written ([`requests`]).
//!
//! - [`version`]: versions and eras
//! - [`params`]: what a client asks, rebuilt from what was checked
//! - [`requests`]: what the gateway sends to a server
//! - [`results`]: what it reads of the answers, [`pages`]: how far lists may go
//! - [`headers`]: the headers in which a modern client repeats its body
//! - [`names`]: names on the endpoint that shows all servers together
//! - [`trace`]: trace context from a caller's headers

pub mod headers;
mod log_level;
pub mod names;
pub mod pages;
pub mod params;
pub mod requests;
pub mod results;
pub mod trace;
pub mod version;

pub use log_level::LogLevel;
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
    /// The prompts a server has.
    pub const PROMPTS_LIST: &str = "prompts/list";
    /// One prompt, filled in.
    pub const PROMPTS_GET: &str = "prompts/get";
    /// The resources a server has.
    pub const RESOURCES_LIST: &str = "resources/list";
    /// The kinds of resources a server can make up.
    pub const TEMPLATES_LIST: &str = "resources/templates/list";
    /// The content of a resource.
    pub const RESOURCES_READ: &str = "resources/read";
    /// Legacy: tell me when a resource changes.
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    /// Legacy: no longer.
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    /// What an argument could be.
    pub const COMPLETE: &str = "completion/complete";
    /// Legacy: how grave a log line must be to be sent.
    pub const SET_LOG_LEVEL: &str = "logging/setLevel";
    /// The tools have changed.
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
    /// The prompts have changed.
    pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
    /// The resources, or their templates, have changed.
    pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
    /// The content of a resource has changed.
    pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
    /// Modern: what a subscription will tell.
    pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
    /// How far a request has come.
    pub const PROGRESS: &str = "notifications/progress";
    /// Legacy: the client's roots have changed.
    pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
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
    /// Modern: how grave a log line must be to be sent.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// Marks the progress of a request.
    pub const PROGRESS_TOKEN: &str = "progressToken";
    /// The trace a request belongs to (W3C).
    pub const TRACEPARENT: &str = "traceparent";
    /// What belongs to it.
    pub const TRACESTATE: &str = "tracestate";
    /// Modern: the `subscriptions/listen` request a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// The gateway's own: how many milliseconds a request has left.
    pub const TIMEOUT: &str = "trunkline/timeoutMs";
}

/// Modern: the headers of a request do not say what its body says.
pub const HEADER_MISMATCH: i64 = -32020;
/// Modern: the request needs something that the client has not said it can do.
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// Legacy: no such resource. Modern servers say "invalid params".
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// Modern: the server does not speak the version of the request.
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
