//! The parts of a server's answers that the gateway reads. Everything else passes through unseen.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{ProtocolVersion, meta};

/// What a result says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// What was asked for.
    Complete,
    /// The tool says that it failed (`isError`). For MCP this is a result like any other.
    ToolError,
    /// The tool wants input before it goes on (modern servers).
    InputRequired,
}

impl ResultKind {
    /// As calls are counted by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "ok",
            Self::ToolError => "tool_error",
            Self::InputRequired => "input_required",
        }
    }
}

/// The beginning of a result: what the gateway must know of every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultHead {
    /// What it is.
    pub kind: ResultKind,
    /// Whether it says so itself (`resultType`).
    pub is_typed: bool,
}

impl ResultHead {
    /// Reads it from a whole result.
    pub fn read(result: &str) -> Result<Self, &'static str> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head<'a> {
            #[serde(default)]
            is_error: Option<bool>,
            #[serde(borrow, default)]
            result_type: Option<Cow<'a, str>>,
        }
        // Without this look serde would also take an array, member by member.
        if !result.starts_with('{') {
            return Err("the result is not an object");
        }
        let head: Head<'_> = serde_json::from_str(result)
            .map_err(|_| "the result's `isError` or `resultType` makes no sense")?;
        let is_typed = head.result_type.is_some();
        let kind = match head.result_type.as_deref() {
            // Servers of the legacy era do not say; theirs are always complete.
            None | Some("complete") if head.is_error == Some(true) => ResultKind::ToolError,
            None | Some("complete") => ResultKind::Complete,
            Some("input_required") => ResultKind::InputRequired,
            Some(_) => return Err("the result is of a type that nobody asked for"),
        };
        Ok(Self { kind, is_typed })
    }
}

/// Who a server says it is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Implementation {
    /// The server's own name.
    #[serde(default)]
    pub name: String,
    /// The server's own version.
    #[serde(default)]
    pub version: String,
}

/// What a server says it can do; only what the gateway uses.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct ServerCapabilities {
    /// Absent: the server has no tools.
    #[serde(default)]
    pub tools: Option<ListCapability>,
    /// Absent: it has no prompts.
    #[serde(default)]
    pub prompts: Option<ListCapability>,
    /// Absent: it has no resources.
    #[serde(default)]
    pub resources: Option<ListCapability>,
    /// Absent: it does not complete arguments.
    #[serde(default)]
    pub completions: Option<IgnoredAny>,
    /// Absent: it sends no log lines.
    #[serde(default)]
    pub logging: Option<IgnoredAny>,
}

/// The capability of having tools, prompts or resources.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ListCapability {
    /// Whether the server tells when the list changes.
    #[serde(default)]
    pub list_changed: bool,
    /// Resources: whether it tells when one of them changes.
    #[serde(default)]
    pub subscribe: bool,
}

/// The answer to `server/discover`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoverResult {
    supported_versions: Vec<String>,
    /// What the server can do.
    #[serde(default)]
    pub capabilities: ServerCapabilities,
    /// How to use it, in words for a model.
    #[serde(default)]
    pub instructions: Option<String>,
    #[serde(default, rename = "_meta")]
    meta: ResultMeta,
}

#[derive(Debug, Default, Deserialize)]
struct ResultMeta {
    #[serde(default, rename = "io.modelcontextprotocol/serverInfo")]
    server_info: Implementation,
}

impl DiscoverResult {
    /// The newest version both sides speak, or the server's list.
    pub fn version(&self) -> Result<ProtocolVersion, String> {
        pick_version(&self.supported_versions)
    }

    /// Who answered.
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
    /// The newest version both sides speak, or the server's list.
    pub fn version(&self) -> Result<ProtocolVersion, String> {
        pick_version(&self.supported)
    }
}

fn pick_version(offered: &[String]) -> Result<ProtocolVersion, String> {
    ProtocolVersion::newest_of(offered.iter().map(String::as_str)).ok_or_else(|| offered.join(", "))
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    /// The version the server chose.
    pub protocol_version: String,
    /// What the server can do.
    #[serde(default)]
    pub capabilities: ServerCapabilities,
    /// Who answered.
    #[serde(default)]
    pub server_info: Implementation,
    /// How to use it, in words for a model.
    #[serde(default)]
    pub instructions: Option<String>,
}

/// One page of `tools/list`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolsPage {
    /// The definitions, raw.
    pub tools: Vec<Box<RawValue>>,
    /// Where the next page starts.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// How long a result may be kept, and by whom. Legacy servers do not say: not at all, and by nobody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// In milliseconds.
    pub ttl_ms: u64,
    /// Whether it is the same for everybody.
    pub is_public: bool,
}

impl Caching {
    /// For as long as anybody likes, and by all: what the pages of a list are added to ([`Caching::and`]).
    pub const ANY: Self = Self { ttl_ms: u64::MAX, is_public: true };

    /// What a result says. Anything unreadable counts as not said.
    pub fn of(result: &str) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head<'a> {
            #[serde(default)]
            ttl_ms: Option<f64>,
            #[serde(borrow, default)]
            cache_scope: Option<Cow<'a, str>>,
        }
        let Ok(head) = serde_json::from_str::<Head<'_>>(result) else { return Self::default() };
        Self {
            // Negative ones count as zero, as the specification wants it.
            ttl_ms: head.ttl_ms.unwrap_or_default() as u64,
            is_public: head.cache_scope.as_deref() == Some("public"),
        }
    }

    /// What holds for both together.
    pub fn and(self, other: Self) -> Self {
        Self { ttl_ms: self.ttl_ms.min(other.ttl_ms), is_public: self.is_public && other.is_public }
    }
}

/// The name in a tool's definition.
pub fn tool_name(definition: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        name: String,
    }
    serde_json::from_str::<Head>(definition.get()).ok().map(|head| head.name)
}

/// Whether a tool says that calling it twice does no harm: it changes nothing, or the same again.
pub fn is_repeatable(definition: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Head {
        annotations: Annotations,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Annotations {
        #[serde(default)]
        read_only_hint: bool,
        #[serde(default)]
        idempotent_hint: bool,
    }
    serde_json::from_str::<Head>(definition.get())
        .is_ok_and(|Head { annotations: it }| it.read_only_hint || it.idempotent_hint)
}

/// The `inputSchema` of a tool's definition.
pub fn input_schema(definition: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head<'a> {
        #[serde(borrow)]
        input_schema: &'a RawValue,
    }
    serde_json::from_str::<Head<'_>>(definition.get()).ok().map(|head| head.input_schema)
}

// The attribute above cannot take a constant.
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
            assert_eq!(ResultHead::read(result).map(|head| head.kind), Ok(kind), "{result}");
        }
        for result in ["[]", "null", "7", r#"{"isError":"yes"}"#, r#"{"resultType":"task"}"#] {
            assert!(ResultHead::read(result).is_err(), "{result}");
        }
    }

    #[test]
    fn a_discover_result_tells_version_and_name() {
        let result: DiscoverResult = serde_json::from_str(
            r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},
                "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}},"ttlMs":0}"#,
        )
        .unwrap();
        assert_eq!(result.version(), Ok(ProtocolVersion::V2026_07_28));
        assert_eq!(result.server_info().name, "x");
        assert!(result.capabilities.tools.unwrap().list_changed);
    }

    #[test]
    fn no_common_version_names_what_the_server_offers() {
        let data: UnsupportedVersion =
            serde_json::from_str(r#"{"supported":["2030-01-01"]}"#).unwrap();
        assert_eq!(data.version(), Err("2030-01-01".to_owned()));
    }
}
