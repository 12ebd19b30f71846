//! The parts of the Model Context Protocol that the gateway needs: versions, the messages that it
//! sends itself, and the few fields of answers that it reads. Pure: no I/O, no clock.
//!
//! MCP has two eras. A *legacy* server (2024-11-05 to 2025-11-25) needs an `initialize` handshake.
//! A *modern* server (2026-07-28) is stateless and needs version and capabilities with every
//! request. The handshake finds a server's era, which decides how requests to it are written.
//!
//! - [`params`]: the parameters of a client's request, rebuilt from what was checked
//! - [`requests`]: versions, eras, and the requests that the gateway sends to a server
//! - [`results`]: the parts of answers that the gateway reads; [`pages`]: limits for paged lists
//! - [`about`]: a server's description of itself, in its own words
//! - [`extensions`]: the methods that extensions add, and what a server declares
//! - [`headers`]: the headers in which a modern client repeats its body
//! - [`names`]: names on the endpoint that combines all servers; [`apps`] and [`skills`]: URIs in
//!   definitions and entries there
//! - [`questions`]: questions of servers to clients, in the forms of both eras
//! - [`trace`]: trace context from a caller's headers

pub mod about;
pub mod apps;
pub mod extensions;
pub mod headers;
mod log_level;
pub mod names;
pub mod pages;
pub mod params;
pub mod questions;
pub mod requests;
pub mod results;
pub mod skills;
pub mod trace;

pub use log_level::LogLevel;
pub use requests::{Era, ProtocolVersion};

/// Name and version that the gateway and the bundled server give in handshakes.
pub const IMPLEMENTATION_NAME: &str = "trunkline";
pub const IMPLEMENTATION_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Method names, spelled once.
pub mod method {
    /// Modern.
    pub const DISCOVER: &str = "server/discover";
    /// Modern.
    pub const LISTEN: &str = "subscriptions/listen";
    /// Legacy.
    pub const INITIALIZE: &str = "initialize";
    /// Legacy.
    pub const INITIALIZED: &str = "notifications/initialized";
    /// Legacy.
    pub const PING: &str = "ping";
    pub const TOOLS_LIST: &str = "tools/list";
    pub const TOOLS_CALL: &str = "tools/call";
    pub const CANCELLED: &str = "notifications/cancelled";
    pub const PROMPTS_LIST: &str = "prompts/list";
    pub const PROMPTS_GET: &str = "prompts/get";
    pub const RESOURCES_LIST: &str = "resources/list";
    pub const TEMPLATES_LIST: &str = "resources/templates/list";
    pub const RESOURCES_READ: &str = "resources/read";
    /// Legacy.
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    /// Legacy.
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    pub const COMPLETE: &str = "completion/complete";
    /// Legacy.
    pub const SET_LOG_LEVEL: &str = "logging/setLevel";
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
    pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
    pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
    pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
    /// Modern: names the changes that a subscription will report.
    pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
    pub const PROGRESS: &str = "notifications/progress";
    /// Legacy: a request of a server.
    pub const ROOTS_LIST: &str = "roots/list";
    /// Legacy.
    pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
    pub const LOG_MESSAGE: &str = "notifications/message";
    /// Of the skills extension, as the next two.
    pub const SKILLS_LIST: &str = "skills/list";
    pub const SKILLS_GET: &str = "skills/get";
    pub const DIRECTORY_READ: &str = "resources/directory/read";
    /// Of the tasks extension, as the next two.
    pub const TASKS_GET: &str = "tasks/get";
    pub const TASKS_UPDATE: &str = "tasks/update";
    pub const TASKS_CANCEL: &str = "tasks/cancel";
    /// Stands for any method of an extension that the gateway does not know.
    pub const EXTENSION: &str = "extension";

    const REQUESTS: [&str; 16] = [
        DISCOVER,
        LISTEN,
        INITIALIZE,
        PING,
        TOOLS_LIST,
        TOOLS_CALL,
        PROMPTS_LIST,
        PROMPTS_GET,
        RESOURCES_LIST,
        TEMPLATES_LIST,
        RESOURCES_READ,
        RESOURCES_SUBSCRIBE,
        RESOURCES_UNSUBSCRIBE,
        COMPLETE,
        SET_LOG_LEVEL,
        SKILLS_LIST,
    ];

    /// Returns the name of a request that the protocol defines.
    pub fn known_request(name: &str) -> Option<&'static str> {
        REQUESTS.into_iter().find(|known| *known == name)
    }
}

/// `_meta` keys, spelled once.
pub mod meta {
    /// Modern.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// Modern.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Modern.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// Modern.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// Modern.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    pub const PROGRESS_TOKEN: &str = "progressToken";
    /// W3C Trace Context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C Trace Context.
    pub const TRACESTATE: &str = "tracestate";
    /// Modern: the `subscriptions/listen` request a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// The gateway's own: the milliseconds that a request has left.
    pub const TIMEOUT: &str = "trunkline/timeoutMs";
    /// In the gateway's lists: the servers that are left out because their process does not run.
    pub const NOT_LISTED: &str = "trunkline/notListed";
    /// In the gateway's lists: the servers that are left out because they are down, and why.
    pub const UNAVAILABLE: &str = "trunkline/unavailable";
    /// In the gateway's lists: the servers that are left out because the client has no session.
    pub const NEEDS_SESSION: &str = "trunkline/needsSession";
    /// In a toolset's results: by what a result was cut, and how long it was.
    pub const CUT: &str = "trunkline/cut";
    /// In a toolset's results: the pointer that leads to no part of the result.
    pub const POINTED: &str = "trunkline/pointer";
}

/// Modern: headers and body of a request disagree.
pub const HEADER_MISMATCH: i64 = -32020;
/// Modern: the request needs a capability that the client did not declare.
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// Legacy. Modern servers answer "invalid params".
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// Modern.
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
