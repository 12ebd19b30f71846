//! The parts of a server's answers that the gateway reads. Everything else passes through unread.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{ProtocolVersion, meta};
use crate::protocol::jsonrpc::JsonText;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// Complete, or of a type that an extension adds.
    Complete,
    /// The tool reports that it failed (`isError`). For MCP this is a result like any other.
    ToolError,
    /// The tool needs input before it continues (modern servers).
    InputRequired,
    /// The tool goes on as a task of the server's (modern servers).
    Task,
}

impl ResultKind {
    /// Returns the name in metrics and usage.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "ok",
            Self::ToolError => "tool_error",
            Self::InputRequired => "input_required",
            Self::Task => "task",
        }
    }
}

/// The types of results that a caller has asked for by the extensions that it declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedTypes {
    pub tasks: bool,
    /// Any type that an extension may add.
    pub others: bool,
}

/// The members that the gateway reads of every result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultHead {
    pub kind: ResultKind,
    /// Whether the result names its kind (`resultType`).
    pub is_typed: bool,
}

impl ResultHead {
    /// Reads a result, whose type must be one of the protocol or of `asked`.
    pub fn read(result: &str, asked: AskedTypes) -> Result<Self, &'static str> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head<'a> {
            is_error: Option<bool>,
            #[serde(borrow)]
            result_type: Option<Cow<'a, str>>,
        }
        // Without this check serde would also accept an array, member by member.
        if !result.starts_with('{') {
            return Err("the result is not an object");
        }
        let head: Head<'_> = serde_json::from_str(result)
            .map_err(|_| "the result's `isError` or `resultType` makes no sense")?;
        let is_typed = head.result_type.is_some();
        let kind = match head.result_type.as_deref() {
            // Legacy servers do not name the kind; their results are always complete.
            None | Some("complete") if head.is_error == Some(true) => ResultKind::ToolError,
            None | Some("complete") => ResultKind::Complete,
            Some("input_required") => ResultKind::InputRequired,
            Some("task") if asked.tasks => ResultKind::Task,
            Some(other) if asked.others && other != "task" => ResultKind::Complete,
            Some(_) => return Err("the result is of a type that nobody asked for"),
        };
        Ok(Self { kind, is_typed })
    }
}

/// The name and version that a server gives.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Implementation {
    pub name: JsonText,
    pub version: JsonText,
}

/// The capabilities of a server that the gateway uses.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct ServerCapabilities {
    pub tools: Option<ListCapability>,
    pub prompts: Option<ListCapability>,
    pub resources: Option<ListCapability>,
    pub completions: Option<IgnoredAny>,
    pub logging: Option<IgnoredAny>,
}

/// The capability to have tools, prompts or resources.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ListCapability {
    /// Whether the server reports changes of the list.
    pub list_changed: bool,
    /// Resources: whether the server reports changes of single resources.
    pub subscribe: bool,
}

/// The answer to `server/discover`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoverResult {
    supported_versions: Vec<String>,
    #[serde(default)]
    pub capabilities: ServerCapabilities,
    /// Instructions for a model.
    pub instructions: Option<JsonText>,
    #[serde(default, rename = "_meta")]
    meta: ResultMeta,
}

#[derive(Debug, Default, Deserialize)]
struct ResultMeta {
    #[serde(default, rename = "io.modelcontextprotocol/serverInfo")]
    server_info: Implementation,
}

impl DiscoverResult {
    /// Returns the newest common version, or the server's list as the error.
    pub fn version(&self) -> Result<ProtocolVersion, String> {
        pick_version(&self.supported_versions)
    }

    pub fn server_info(&self) -> Implementation {
        self.meta.server_info.clone()
    }
}

/// The `data` of an "unsupported protocol version" error.
#[derive(Debug, Deserialize)]
pub struct UnsupportedVersion {
    supported: Vec<String>,
}

impl UnsupportedVersion {
    /// Returns the newest common version, or the server's list as the error.
    pub fn version(&self) -> Result<ProtocolVersion, String> {
        pick_version(&self.supported)
    }
}

fn pick_version(offered: &[String]) -> Result<ProtocolVersion, String> {
    let supported = offered.iter().filter_map(|version| ProtocolVersion::parse(version));
    supported.max().ok_or_else(|| offered.join(", "))
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    pub protocol_version: String,
    #[serde(default)]
    pub capabilities: ServerCapabilities,
    #[serde(default)]
    pub server_info: Implementation,
    /// Instructions for a model.
    pub instructions: Option<JsonText>,
}

/// One page of `tools/list`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolsPage {
    pub tools: Vec<Box<RawValue>>,
    pub next_cursor: Option<String>,
}

/// Says how long a result may be cached and for whom. Legacy servers do not say, which means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    pub ttl_ms: u64,
    /// Whether the result is the same for all callers.
    pub is_public: bool,
}

impl Caching {
    /// No restriction: the start value for combining pages with [`Caching::and`].
    pub const ANY: Self = Self { ttl_ms: u64::MAX, is_public: true };

    /// Reads a result. Unreadable members count as absent.
    pub fn of(result: &str) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head<'a> {
            ttl_ms: Option<f64>,
            #[serde(borrow)]
            cache_scope: Option<Cow<'a, str>>,
        }
        let Ok(head) = serde_json::from_str::<Head<'_>>(result) else { return Self::default() };
        Self {
            // Negative values become zero, as the specification asks.
            ttl_ms: head.ttl_ms.unwrap_or_default() as u64,
            is_public: head.cache_scope.as_deref() == Some("public"),
        }
    }

    /// Returns the stricter of both in each respect.
    pub fn and(self, other: Self) -> Self {
        Self { ttl_ms: self.ttl_ms.min(other.ttl_ms), is_public: self.is_public && other.is_public }
    }
}

/// Returns the name in a tool's definition.
pub fn tool_name(definition: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        name: String,
    }
    // serde would also take an array as the members in order.
    if !definition.get().starts_with('{') {
        return None;
    }
    serde_json::from_str::<Head>(definition.get()).ok().map(|head| head.name)
}

/// Returns whether a tool's annotations say that it is read-only or idempotent.
pub fn is_repeatable(definition: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Head {
        annotations: Annotations,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Annotations {
        read_only_hint: bool,
        idempotent_hint: bool,
    }
    serde_json::from_str::<Head>(definition.get())
        .is_ok_and(|Head { annotations: it }| it.read_only_hint || it.idempotent_hint)
}

/// Returns whether a tool can be called only as a task.
pub fn requires_task(definition: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        execution: Execution<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Execution<'a> {
        #[serde(borrow)]
        task_support: Cow<'a, str>,
    }
    // Few definitions are read twice.
    definition.get().contains("taskSupport")
        && serde_json::from_str::<Head<'_>>(definition.get())
            .is_ok_and(|head| head.execution.task_support == "required")
}

/// Returns the `inputSchema` of a tool's definition.
pub fn input_schema(definition: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head<'a> {
        #[serde(borrow)]
        input_schema: &'a RawValue,
    }
    serde_json::from_str::<Head<'_>>(definition.get()).ok().map(|head| head.input_schema)
}

// The `rename` attribute of `ResultMeta` cannot take a constant.
const _: () =
    assert!(matches!(meta::SERVER_INFO.as_bytes(), b"io.modelcontextprotocol/serverInfo"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_tool_results() {
        for (result, kind) in [
            (r#"{"content":[]}"#, ResultKind::Complete),
            (r#"{"content":[],"isError":false,"resultType":"complete"}"#, ResultKind::Complete),
            (r#"{"isError":true,"content":[]}"#, ResultKind::ToolError),
            (r#"{"resultType":"input_required","inputRequests":{}}"#, ResultKind::InputRequired),
        ] {
            let read = ResultHead::read(result, AskedTypes::default()).map(|head| head.kind);
            assert_eq!(read, Ok(kind), "{result}");
        }
        for result in ["[]", "null", "7", r#"{"isError":"yes"}"#, r#"{"resultType":"task"}"#] {
            assert!(ResultHead::read(result, AskedTypes::default()).is_err(), "{result}");
        }
        let (task, other) = (r#"{"resultType":"task"}"#, r#"{"resultType":"x/y"}"#);
        let kind = |result, tasks, others| {
            ResultHead::read(result, AskedTypes { tasks, others }).map(|head| head.kind)
        };
        assert_eq!(kind(other, false, true), Ok(ResultKind::Complete));
        assert_eq!(kind(task, true, false), Ok(ResultKind::Task));
        assert!(kind(task, false, true).is_err() && kind(other, true, false).is_err());
    }

    #[test]
    fn a_discover_result_has_version_and_name() {
        let result: DiscoverResult = serde_json::from_str(
            r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},
                "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}},
                "ttlMs":0}"#,
        )
        .unwrap();
        assert_eq!(result.version(), Ok(ProtocolVersion::V2026_07_28));
        assert_eq!(&*result.server_info().name, "x");
        assert!(result.capabilities.tools.unwrap().list_changed);
    }

    #[test]
    fn no_common_version_names_what_the_server_offers() {
        let data: UnsupportedVersion =
            serde_json::from_str(r#"{"supported":["2030-01-01"]}"#).unwrap();
        assert_eq!(data.version(), Err("2030-01-01".to_owned()));
    }

    #[test]
    fn the_newest_common_version_wins() {
        let pick = |offered: &[&str]| {
            pick_version(&offered.iter().map(|it| (*it).into()).collect::<Vec<_>>())
        };
        let offered = ["2025-03-26", "2030-01-01", "2025-11-25"];
        assert_eq!(pick(&offered), Ok(ProtocolVersion::V2025_11_25));
        assert_eq!(pick(&["1900-01-01", "1901-01-01"]), Err("1900-01-01, 1901-01-01".to_owned()));
    }
}
