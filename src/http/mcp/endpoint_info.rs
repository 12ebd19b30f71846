//! Describes an endpoint: the results of `initialize` and `server/discover`.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{McpRequest, Scope};
use crate::backend::{About, Backend, Ready, RunState};
use crate::gateway::CallError;
use crate::protocol::mcp::about::Shown;
use crate::protocol::mcp::{
    Era, IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, ProtocolVersion, extensions, meta,
};
use crate::registry::Server;

/// The most of one server's instructions that is quoted where all servers are shown together.
const INSTRUCTIONS_CHARS_MAX: usize = 4096;

/// All texts are JSON.
pub(super) struct EndpointInfo {
    server_info: String,
    capabilities: String,
    instructions: Option<String>,
    /// Further members of the result, and of its `_meta`: `,"name":value` each.
    others: String,
    meta: String,
}

impl EndpointInfo {
    /// Describes the endpoint of a request. A single server is waited for until it is ready.
    pub(super) async fn of(request: &McpRequest<'_>) -> Result<Self, CallError> {
        match &request.http.scope {
            Scope::All => Ok(Self::of_all(request)),
            Scope::Toolset(_) => Ok(Self::of_toolset(request.era)),
            Scope::One(server) => {
                let until = |backend: &Backend| Instant::now() + backend.start_wait();
                let gateway = &request.http.app.gateway;
                let server = gateway.server(request.caller, server)?;
                let whole = request.caller.may_use_all_of(server.id().as_str());
                let is_shared = matches!(&*server, Server::Shared(_));
                let (_, ready) =
                    gateway.ready_or_start(request.caller, server.clone(), until).await?;
                let own_process = !is_shared;
                let makes_tasks = server.config().tasks;
                let shown = Shown { whole, era: request.era, makes_tasks, own_process };
                Ok(Self::of_one(&ready, shown))
            }
        }
    }

    /// Repeats one server's own description, without what the gateway does not carry.
    fn of_one(ready: &Ready, shown: Shown) -> Self {
        let (about, words) = (&*ready.about, &ready.about.own_words);
        let info = || json!({"name": about.info.name, "version": about.info.version}).to_string();
        Self {
            server_info: words.server_info().map_or_else(info, ToOwned::to_owned),
            capabilities: words.capabilities(shown).unwrap_or_else(|| read(about, shown)),
            instructions: about
                .instructions
                .as_ref()
                .map(|text| serde_json::to_string(text).expect("a text is plain data")),
            others: words.others().to_owned(),
            meta: words.meta().to_owned(),
        }
    }

    /// Describes a toolset, which has tools alone.
    fn of_toolset(era: Era) -> Self {
        let carried = [extensions::APPS, extensions::TASKS];
        let mut capabilities = json!({"tools": {"listChanged": true}, "logging": {}});
        capabilities["extensions"] = declare(&carried, era);
        Self {
            server_info: own_info(),
            capabilities: capabilities.to_string(),
            instructions: None,
            others: String::new(),
            meta: String::new(),
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
        let carried = [extensions::APPS, extensions::SKILLS, extensions::TASKS];
        let capabilities = json!({
            "extensions": declare(&carried, request.era),
            "tools": {"listChanged": true},
            "prompts": {"listChanged": true},
            "resources": {"listChanged": true, "subscribe": true},
            "completions": {},
            "logging": {},
        });
        Self {
            server_info: own_info(),
            capabilities: capabilities.to_string(),
            instructions: Some(json!(instructions).to_string()),
            others: String::new(),
            meta: String::new(),
        }
    }

    pub(super) fn initialize_result(&self, version: ProtocolVersion) -> String {
        let Self { server_info, capabilities, meta, .. } = self;
        let meta = match meta.strip_prefix(',') {
            Some(members) => format!(",\"_meta\":{{{members}}}"),
            None => String::new(),
        };
        format!(
            "{{\"protocolVersion\":\"{version}\",\"capabilities\":{capabilities},\
             \"serverInfo\":{server_info}{}{meta}}}",
            self.end(),
        )
    }

    pub(super) fn discover_result(&self) -> String {
        let Self { server_info, capabilities, meta, .. } = self;
        format!(
            "{{\"resultType\":\"complete\",\"supportedVersions\":[\"{}\"],\
             \"capabilities\":{capabilities},\"ttlMs\":0,\"cacheScope\":\"private\",\
             \"_meta\":{{\"{}\":{server_info}{meta}}}{}}}",
            ProtocolVersion::LATEST,
            meta::SERVER_INFO,
            self.end(),
        )
    }

    /// Writes the members that stand in both eras.
    fn end(&self) -> String {
        let instructions = self.instructions.as_ref();
        let instructions = instructions.map(|text| format!(",\"instructions\":{text}"));
        instructions.unwrap_or_default() + &self.others
    }
}

/// Declares extensions where several servers are shown. Tasks are of the modern era.
fn declare(carried: &[&str], era: Era) -> Value {
    let carried = carried.iter().filter(|it| **it != extensions::TASKS || era == Era::Modern);
    let settings = |name: &str| match name {
        extensions::SKILLS => json!({"directoryRead": true}),
        _ => json!({}),
    };
    carried.map(|name| ((*name).to_owned(), settings(name))).collect()
}

fn own_info() -> String {
    json!({"name": IMPLEMENTATION_NAME, "version": IMPLEMENTATION_VERSION}).to_string()
}

/// Returns the capabilities of a server whose own words are ambiguous or too long.
fn read(about: &About, shown: Shown) -> String {
    let of_server = &about.capabilities;
    let mut capabilities = json!({});
    for (name, capability) in [
        ("tools", of_server.tools.as_ref()),
        ("prompts", of_server.prompts.as_ref().filter(|_| shown.whole)),
        ("resources", of_server.resources.as_ref().filter(|_| shown.whole)),
    ] {
        if let Some(capability) = capability {
            capabilities[name] = json!({"listChanged": true});
            if capability.subscribe {
                capabilities[name]["subscribe"] = json!(true);
            }
        }
    }
    if of_server.completions.is_some() && shown.whole {
        capabilities["completions"] = json!({});
    }
    if of_server.logging.is_some() {
        capabilities["logging"] = json!({});
    }
    capabilities.to_string()
}
