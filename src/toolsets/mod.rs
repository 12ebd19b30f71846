//! Toolsets: named selections of tools, perhaps of several servers, with changes of single tools.
//!
//! A toolset is a view and no server. A front end resolves the name of a tool to the server's own
//! tool and rewrites the arguments, before the gateway; it rewrites the result after it. Limits,
//! usage and pins go by the server's own names.
//!
//! - [`mod@arguments`]: the arguments of a call
//! - [`definition`]: the definition that is listed
//! - [`error`]: the errors of calls
//! - [`result`]: the result that the caller gets
//! - [`search`]: the pair of tools that stands for a large toolset

pub mod arguments;
mod definition;
pub mod error;
pub mod result;
pub mod search;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use self::result::ResultChange;
use crate::common::ids::ToolsetId;
use crate::common::policy::Pattern;
use crate::config::{ArgumentOverride, ToolOverride, ToolsetConfig};
use crate::protocol::mcp::names;

/// The toolsets of the configuration, replaced as a whole by a reload.
#[derive(Default)]
pub struct Toolsets {
    current: ArcSwap<BTreeMap<ToolsetId, Arc<Toolset>>>,
}

/// One toolset as it is configured: a change makes a new one.
#[derive(Debug)]
pub struct Toolset {
    id: ToolsetId,
    config: ToolsetConfig,
    /// No other toolset has it, not even a later one of the same name.
    number: u64,
    by_name: HashMap<String, Arc<ChangedTool>>,
    /// By `SERVER/TOOL`.
    by_tool: HashMap<String, Arc<ChangedTool>>,
}

/// A tool that a toolset changes.
#[derive(Debug)]
pub struct ChangedTool {
    pub server: String,
    /// The server's own name of the tool.
    pub tool: String,
    /// Its name in the toolset.
    pub name: String,
    description: Option<String>,
    arguments: BTreeMap<String, ArgumentOverride>,
    pub result: ResultChange,
}

/// The tool that a name stands for in a toolset. Whether there is such a tool is not known yet.
#[derive(Debug)]
pub enum Resolved<'a> {
    Changed(Arc<ChangedTool>),
    /// A tool of this server, under the name that it has where all servers are shown together.
    Exposed {
        server: &'a str,
    },
}

/// Numbers toolsets. No number is used twice.
static TOOLSETS: AtomicU64 = AtomicU64::new(1);

impl Toolsets {
    pub fn new(configured: &BTreeMap<ToolsetId, ToolsetConfig>) -> Self {
        let toolsets = Self::default();
        toolsets.apply(configured);
        toolsets
    }

    /// Makes these the toolsets. Those whose configuration is the same stay the same.
    pub fn apply(&self, configured: &BTreeMap<ToolsetId, ToolsetConfig>) {
        let before = self.current.load();
        let toolset = |(id, config): (&ToolsetId, &ToolsetConfig)| {
            let same = before.get(id).filter(|toolset| toolset.config == *config).cloned();
            (id.clone(), same.unwrap_or_else(|| Arc::new(Toolset::new(id, config))))
        };
        self.current.store(Arc::new(configured.iter().map(toolset).collect()));
    }

    pub fn get(&self, id: &str) -> Option<Arc<Toolset>> {
        self.current.load().get(id).cloned()
    }

    /// Returns all toolsets, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<Toolset>> {
        self.current.load().values().cloned().collect()
    }
}

impl Toolset {
    pub fn new(id: &ToolsetId, config: &ToolsetConfig) -> Self {
        let changed: Vec<_> = config
            .overrides()
            .map(|(server, tool, changes)| Arc::new(ChangedTool::new(server, tool, changes)))
            .collect();
        let named = |tool: &Arc<ChangedTool>| (tool.name.clone(), tool.clone());
        let keyed = |tool: &Arc<ChangedTool>| (key(&tool.server, &tool.tool), tool.clone());
        Self {
            id: id.clone(),
            config: config.clone(),
            number: TOOLSETS.fetch_add(1, Ordering::Relaxed),
            by_name: changed.iter().map(named).collect(),
            by_tool: changed.iter().map(keyed).collect(),
        }
    }

    pub fn id(&self) -> &ToolsetId {
        &self.id
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether MCP clients search for its tools instead of listing them.
    pub fn is_searched(&self) -> bool {
        self.config.search
    }

    /// Returns its patterns, in the order in which their tools are listed.
    pub fn patterns(&self) -> &[Pattern] {
        &self.config.tools
    }

    /// Returns whether it may have tools of a server.
    pub fn has_part_of(&self, server: &str) -> bool {
        self.config.tools.iter().any(|pattern| pattern.covers_part_of(server))
    }

    pub fn has_tool(&self, server: &str, tool: &str) -> bool {
        self.config.tools.iter().any(|pattern| pattern.covers(server, Some(tool)))
    }

    /// Returns the tool of a server as the toolset changes it, if it does.
    pub fn changed(&self, server: &str, tool: &str) -> Option<&Arc<ChangedTool>> {
        self.by_tool.get(&key(server, tool))
    }

    /// Finds the tool that a name stands for. `None` if it can be none.
    pub fn resolve<'a>(&self, name: &'a str) -> Option<Resolved<'a>> {
        if let Some(changed) = self.by_name.get(name) {
            return Some(Resolved::Changed(changed.clone()));
        }
        names::split(name).map(|(server, _)| Resolved::Exposed { server })
    }
}

impl ChangedTool {
    fn new(server: &str, tool: &str, changes: &ToolOverride) -> Self {
        let exposed = || names::exposed_tool_names(server, std::iter::once(tool)).remove(0);
        Self {
            server: server.to_owned(),
            tool: tool.to_owned(),
            name: changes.name.clone().unwrap_or_else(exposed),
            description: changes.description.clone(),
            arguments: changes.arguments.clone(),
            result: ResultChange::new(&changes.result),
        }
    }
}

fn key(server: &str, tool: &str) -> String {
    format!("{server}/{tool}")
}

#[cfg(test)]
mod tests;
