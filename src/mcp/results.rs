//! The parts of a server's answers that the gateway reads. Everything else passes through unseen.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ProtocolVersion, meta};

/// What a `tools/call` result says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolResultKind {
    /// The tool did its work.
    Complete,
    /// The tool says that it failed (`isError`). For MCP this is a result like any other.
    ToolError,
    /// The tool wants input before it goes on (modern servers).
    InputRequired,
}

/// Tells the kinds of `tools/call` results apart.
pub fn tool_result_kind(result: &str) -> Result<ToolResultKind, &'static str> {
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
    let head: Head<'_> =
        serde_json::from_str(result).map_err(|_| "the result is not a tool result")?;
    match head.result_type.as_deref() {
        // Servers of the legacy era do not say; theirs are always complete.
        None | Some("complete") if head.is_error == Some(true) => Ok(ToolResultKind::ToolError),
        None | Some("complete") => Ok(ToolResultKind::Complete),
        Some("input_required") => Ok(ToolResultKind::InputRequired),
        Some(_) => Err("the result is of a type that nobody asked for"),
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
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct ServerCapabilities {
    /// Absent: the server has no tools.
    #[serde(default)]
    pub tools: Option<ToolsCapability>,
}

/// The `tools` capability.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ToolsCapability {
    /// Whether the server tells when its tools change.
    #[serde(default)]
    pub list_changed: bool,
}

/// The answer to `server/discover`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoverResult {
    supported_versions: Vec<String>,
    /// What the server can do.
    #[serde(default)]
    pub capabilities: ServerCapabilities,
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

/// The name in a tool's definition.
pub fn tool_name(definition: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        name: String,
    }
    serde_json::from_str::<Head>(definition.get()).ok().map(|head| head.name)
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
            (r#"{"content":[]}"#, ToolResultKind::Complete),
            (r#"{"content":[],"isError":false,"resultType":"complete"}"#, ToolResultKind::Complete),
            (r#"{"isError":true,"content":[]}"#, ToolResultKind::ToolError),
            (
                r#"{"resultType":"input_required","inputRequests":{}}"#,
                ToolResultKind::InputRequired,
            ),
        ] {
            assert_eq!(tool_result_kind(result), Ok(kind), "{result}");
        }
        for result in ["[]", "null", "7", r#"{"isError":"yes"}"#, r#"{"resultType":"task"}"#] {
            assert!(tool_result_kind(result).is_err(), "{result}");
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
