//! Describes an endpoint: the results of `initialize` and `server/discover`.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{McpRequest, Scope};
use crate::backend::{About, Backend, RunState};
use crate::gateway::CallError;
use crate::protocol::mcp::results::ServerCapabilities;
use crate::protocol::mcp::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, ProtocolVersion, meta};

/// The most of one server's instructions that is quoted where all servers are shown together.
const INSTRUCTIONS_CHARS_MAX: usize = 4096;

pub(super) struct EndpointInfo {
    server_info: Value,
    capabilities: Value,
    instructions: Option<String>,
}

impl EndpointInfo {
    /// Describes the endpoint of a request. A single server is waited for until it is ready.
    pub(super) async fn of(request: &McpRequest<'_>) -> Result<Self, CallError> {
        match &request.http.scope {
            Scope::All => Ok(Self::of_all(request)),
            Scope::One(server) => {
                let until = |backend: &Backend| Instant::now() + backend.start_wait();
                let gateway = &request.http.app.gateway;
                let server = gateway.server(request.caller, server)?;
                let may_use_all = request.caller.tenant.may_use_all_of(server.id().as_str());
                let (_, ready) = gateway.ready_or_start(request.caller, server, until).await?;
                Ok(Self::of_one(&ready.about, may_use_all))
            }
        }
    }

    /// Repeats one server's own description. Without `may_use_all`, only its tools are named.
    fn of_one(about: &About, may_use_all: bool) -> Self {
        Self {
            server_info: json!({"name": about.info.name, "version": about.info.version}),
            capabilities: capabilities(&about.capabilities, may_use_all),
            instructions: about.instructions.clone(),
        }
    }

    /// Describes the gateway. Servers come and go, so it claims every capability that one may have.
    fn of_all(request: &McpRequest<'_>) -> Self {
        let mut instructions = String::from(
            "This server gives access to several MCP servers. The names of tools and prompts begin \
             with the name of their server and `__`.\n",
        );
        for server in request.http.app.gateway.servers(request.caller) {
            if let Some(backend) = server.running(&request.caller.tenant.id)
                && let RunState::Ready(ready) = backend.state()
                && let Some(text) = &ready.about.instructions
            {
                let text: String = text.chars().take(INSTRUCTIONS_CHARS_MAX).collect();
                instructions += &format!("\n# {}\n{text}\n", server.id());
            }
        }
        Self {
            server_info: json!({"name": IMPLEMENTATION_NAME, "version": IMPLEMENTATION_VERSION}),
            capabilities: json!({
                "tools": {"listChanged": true},
                "prompts": {"listChanged": true},
                "resources": {"listChanged": true, "subscribe": true},
                "completions": {},
                "logging": {},
            }),
            instructions: Some(instructions),
        }
    }

    pub(super) fn initialize_result(&self, version: ProtocolVersion) -> String {
        self.with_instructions(json!({
            "protocolVersion": version.as_str(),
            "capabilities": self.capabilities,
            "serverInfo": self.server_info,
        }))
    }

    pub(super) fn discover_result(&self) -> String {
        self.with_instructions(json!({
            "resultType": "complete",
            "supportedVersions": [ProtocolVersion::LATEST.as_str()],
            "capabilities": self.capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {meta::SERVER_INFO: self.server_info},
        }))
    }

    fn with_instructions(&self, mut result: Value) -> String {
        if let Some(instructions) = &self.instructions {
            result["instructions"] = json!(instructions);
        }
        result.to_string()
    }
}

/// Returns the capabilities of a server that the gateway can offer. `listChanged` is always
/// among them, because a restart of the server may change its lists.
fn capabilities(of_server: &ServerCapabilities, may_use_all: bool) -> Value {
    let mut capabilities = json!({});
    for (name, capability) in [
        ("tools", &of_server.tools),
        ("prompts", &of_server.prompts),
        ("resources", &of_server.resources),
    ] {
        if let Some(capability) = capability
            && (name == "tools" || may_use_all)
        {
            capabilities[name] = json!({"listChanged": true});
            if capability.subscribe {
                capabilities[name]["subscribe"] = json!(true);
            }
        }
    }
    if of_server.completions.is_some() && may_use_all {
        capabilities["completions"] = json!({});
    }
    if of_server.logging.is_some() {
        capabilities["logging"] = json!({});
    }
    capabilities
}
