//! `[toolsets.*]`: named selections of tools, with changes of single tools.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::error::ConfigError;
use super::kind::{self, Kind};
use super::section::{Settings, section};
use super::tree::Node;
use super::{ServerConfig, Sources, reader};
use crate::common::ids::{ServerId, TenantName, ToolsetId};
use crate::common::policy::{Grant, Pattern, Policy};

/// The longest name that common clients accept.
const NAME_LEN_MAX: usize = 64;
/// As deep as the arguments of a call may be.
const POINTER_STEPS_MAX: usize = 64;
/// The tools that `search = true` adds.
const SEARCH_TOOLS: [&str; 2] = ["search_tools", "call_tool"];

section! {
    /// A toolset is a selection of tools, perhaps of several servers, under names of its own. It is
    /// granted to tenants as `toolset:NAME`. Its name has at most 32 letters, digits, `-` and `_`,
    /// beginning with a letter or digit.
    pub struct ToolsetConfig in "toolsets.NAME" {
        /// Tools, in the order in which they are listed. A server means all its tools. `*` stands
        /// for any characters.
        tools: Vec<Pattern>, kind::PATTERNS;
        /// Whether MCP clients are listed two tools, `search_tools` and `call_tool`, instead of the
        /// toolset's own.
        search: bool = false, kind::FLAG;
        /// Changes of single tools, by `"SERVER/TOOL"`.
        r#override: BTreeMap<String, ToolOverride> = {}, OVERRIDES;
    }
}

section! {
    /// Changes of one tool of a toolset.
    pub struct ToolOverride in "toolsets.NAME.override.TOOL" {
        /// Name of the tool. Unset: `SERVER__TOOL`.
        name: Option<String>, TOOL_NAME;
        /// Description of the tool. Unset: that of the server.
        description: Option<String>, kind::TEXT;
        /// Changes of single arguments, by their names.
        arguments: BTreeMap<String, ArgumentOverride> = {}, ARGUMENTS;
        /// Changes of results.
        result: ResultOverride = {}, Kind::Section(&ResultOverride::SECTION);
    }
}

section! {
    /// Changes of one argument, at the top level of the tool's arguments.
    pub struct ArgumentOverride in "toolsets.NAME.override.TOOL.arguments.ARGUMENT" {
        /// Value that every call has. Callers neither see the argument nor may give it.
        fixed: Option<Json>, ANY;
        /// Whether callers neither see the argument nor may give it. The server's own default
        /// applies.
        hidden: bool = false, kind::FLAG;
        /// Description of the argument. Unset: that of the server.
        description: Option<String>, kind::TEXT;
    }
}

section! {
    /// Changes of a tool's results. With any of them, the tool's `outputSchema` is not listed.
    #[derive(Default)]
    pub struct ResultOverride in "toolsets.NAME.override.TOOL.result" {
        /// The longest result. Of a longer one callers get this many bytes of its texts, and
        /// nothing else of it. Unset: no limit.
        max_bytes: Option<usize>, kind::SIZE;
        /// JSON Pointer to the part of a result that callers get, as text, instead of the whole.
        /// Unset: the whole.
        pointer: Option<String>, POINTER;
    }
}

const ANY: Kind = Kind::Value("a value that JSON has", |node, _| {
    let value = node.value.to_json();
    if has_null(&value) { Err(kind::it_is(&node)) } else { Ok(value) }
});

/// Returns whether a part is missing: TOML's dates and some of its numbers are no JSON.
fn has_null(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Array(items) => items.iter().any(has_null),
        Json::Object(members) => members.values().any(has_null),
        _ => false,
    }
}

const TOOL_NAME: Kind = Kind::Value(
    "1 to 64 characters of A-Z, a-z, 0-9, `-`, `_`, `.` and `/`; not `search_tools` or `call_tool`",
    |node, _| {
        kind::checked(&node, |text| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
            let fits = (1..=NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(is_plain);
            (fits && !SEARCH_TOOLS.contains(&text)).then(|| text.to_owned())
        })
    },
);

const POINTER: Kind = Kind::Value(
    "a JSON Pointer that is not empty, such as \"/structuredContent/text\"",
    |node, _| {
        kind::checked(&node, |text| {
            let has_escapes = text.split('~').skip(1).all(|tail| tail.starts_with(['0', '1']));
            let fits = text.starts_with('/') && text.split('/').count() <= POINTER_STEPS_MAX;
            (has_escapes && fits).then(|| text.to_owned())
        })
    },
);

const OVERRIDES: Kind = Kind::Table {
    name: |name| match split(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err("names no tool: write a server and a tool, such as `web/fetch`".to_owned()),
    },
    entry: &Kind::Section(&ToolOverride::SECTION),
};

const ARGUMENTS: Kind = Kind::Table {
    name: |name| match name.is_empty() {
        true => Err("has no name".to_owned()),
        false => Ok(name.to_owned()),
    },
    entry: &Kind::Section(&ArgumentOverride::SECTION),
};

/// Splits the key of an override into server and tool.
fn split(tool: &str) -> Option<(&str, &str)> {
    let (server, name) = tool.split_once('/')?;
    let is_one = ServerId::parse(server).is_ok() && Pattern::parse(tool).is_ok();
    (is_one && !name.contains('*')).then_some((server, name))
}

impl ToolsetConfig {
    /// Returns the overrides, with the server and the name of the tool that each changes.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, &str, &ToolOverride)> {
        self.r#override.iter().filter_map(|(tool, changes)| {
            let (server, name) = split(tool)?;
            Some((server, name, changes))
        })
    }

    /// Returns the names of tools that are named one by one, each with its tool.
    fn names(&self) -> impl Iterator<Item = (String, String)> {
        let single = self.tools.iter().map(Pattern::to_string);
        let single = single.filter(|tool| !self.r#override.contains_key(tool));
        let plain = single.filter_map(|tool| {
            let (server, name) = split(&tool)?;
            Some((format!("{server}__{name}"), tool.clone()))
        });
        let overridden = self.overrides().map(|(server, name, changes)| {
            let own = changes.name.clone().unwrap_or_else(|| format!("{server}__{name}"));
            (own, format!("{server}/{name}"))
        });
        overridden.chain(plain)
    }

    /// Returns the first contradiction between settings.
    fn contradiction(&self) -> Option<String> {
        for (server, name, changes) in self.overrides() {
            if !self.tools.iter().any(|pattern| pattern.covers(server, Some(name))) {
                return Some(format!(
                    "changes the tool `{server}/{name}`, which none of its `tools` selects"
                ));
            }
            for (argument, changes) in &changes.arguments {
                let ways = [changes.fixed.is_some(), changes.hidden, changes.description.is_some()];
                if ways.into_iter().filter(|is_set| *is_set).count() > 1 {
                    return Some(format!(
                        "changes the argument `{argument}` of `{server}/{name}` in two ways: give \
                         one of `fixed`, `hidden` and `description`"
                    ));
                }
            }
        }
        let mut by_name = BTreeMap::new();
        self.names().find_map(|(name, tool)| {
            let other =
                by_name.insert(name.clone(), tool.clone()).filter(|other| *other != tool)?;
            Some(format!("gives one name, `{name}`, to two tools: `{other}` and `{tool}`"))
        })
    }
}

pub(super) fn toolsets(
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<ToolsetId, ToolsetConfig>, ConfigError> {
    super::named("toolsets", node, ToolsetId::parse, |path, node| {
        let place = node.place.clone();
        let toolset: ToolsetConfig = reader::read(path, node, sources)?;
        match toolset.contradiction() {
            Some(problem) => Err(place.error(format!("`{path}` {problem}"))),
            None => Ok(toolset),
        }
    })
}

/// Warns of servers in toolsets, and of toolsets in grants, that are not configured.
pub(super) fn warnings(
    toolsets: &BTreeMap<ToolsetId, ToolsetConfig>,
    servers: &BTreeMap<ServerId, ServerConfig>,
    tenants: &BTreeMap<TenantName, Policy>,
) -> Vec<String> {
    let mut warnings = vec![];
    for (id, toolset) in toolsets {
        for pattern in &toolset.tools {
            if !servers.keys().any(|server| pattern.covers_part_of(server.as_str())) {
                warnings.push(format!(
                    "`toolsets.{id}.tools` names `{pattern}`, and there is no such server"
                ));
            }
        }
    }
    for (id, policy) in tenants {
        for toolset in policy.servers.list().iter().filter_map(Grant::toolset) {
            if !toolsets.contains_key(toolset) {
                warnings.push(format!(
                    "`tenants.{id}.servers` names the toolset `{toolset}`, and there is none"
                ));
            }
        }
    }
    warnings
}
