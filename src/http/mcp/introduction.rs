//! What an endpoint says of itself: the answers to `initialize` and `server/discover`.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Scope;
use crate::backend::{About, Backend, State};
use crate::common::ids::ServerId;
use crate::gateway::{CallError, Caller};
use crate::http::Front;
use crate::protocol::mcp::results::ServerCapabilities;
use crate::protocol::mcp::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, ProtocolVersion, meta};

/// Instructions of one server that are passed on where all servers are shown together.
const INSTRUCTIONS_CHARS_MAX: usize = 4096;

/// What an endpoint is.
pub(super) struct Introduction {
    info: Value,
    capabilities: Value,
    instructions: Option<String>,
}

impl Introduction {
    /// Of what an endpoint shows, as soon as it is there.
    pub(super) async fn of(
        front: &Front,
        caller: &Caller,
        scope: &Scope,
    ) -> Result<Self, CallError> {
        match scope {
            Scope::All => Ok(Self::of_all(front, caller)),
            Scope::One(server) => {
                let until = |backend: &Backend| Instant::now() + backend.start_wait();
                let (_, ready) = front.gateway.ready(caller, server, until).await?;
                Ok(Self::of_one(&ready.about, caller.tenant.may_use_all_of(server)))
            }
        }
    }

    /// Of one server, as it introduced itself; of its tools alone, to those who may use only these.
    fn of_one(about: &About, may_use_all: bool) -> Self {
        Self {
            info: json!({"name": about.info.name, "version": about.info.version}),
            capabilities: capabilities(&about.capabilities, may_use_all),
            instructions: about.instructions.clone(),
        }
    }

    /// Of the gateway, for all its servers. It can do whatever one of them may be able to: they come and go.
    fn of_all(front: &Front, caller: &Caller) -> Self {
        let mut instructions = String::from(
            "This server gives access to several MCP servers. The names of tools and prompts begin with the name of \
             their server and `__`.\n",
        );
        for server in front.gateway.servers(caller) {
            if let Some(backend) = server.running(&caller.tenant.id)
                && let State::Ready(ready) = backend.state()
                && let Some(own) = &ready.about.instructions
            {
                let own: String = own.chars().take(INSTRUCTIONS_CHARS_MAX).collect();
                instructions += &format!("\n# {}\n{own}\n", server.id());
            }
        }
        Self {
            info: json!({"name": IMPLEMENTATION_NAME, "version": IMPLEMENTATION_VERSION}),
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

    /// The answer to `initialize`.
    pub(super) fn initialize_result(&self, version: ProtocolVersion) -> Value {
        let mut result = json!({
            "protocolVersion": version.as_str(),
            "capabilities": self.capabilities,
            "serverInfo": self.info,
        });
        if let Some(instructions) = &self.instructions {
            result["instructions"] = json!(instructions);
        }
        result
    }

    /// The answer to `server/discover`.
    pub(super) fn discover_result(&self) -> Value {
        let mut result = json!({
            "resultType": "complete",
            "supportedVersions": [ProtocolVersion::LATEST.as_str()],
            "capabilities": self.capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {meta::SERVER_INFO: self.info},
        });
        if let Some(instructions) = &self.instructions {
            result["instructions"] = json!(instructions);
        }
        result
    }
}

/// What a server can do and the gateway can pass on. Lists may always change: servers are started again.
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

impl Scope {
    /// The server, if it is one.
    pub(super) fn server(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::One(server) => Some(server),
        }
    }

    /// Whether a server is among those that are shown.
    pub(super) fn shows(&self, server: &ServerId) -> bool {
        self.server().is_none_or(|shown| shown == server.as_str())
    }
}
