//! The requests and notifications that the gateway sends to a server, in the protocol version that
//! the server speaks.

use std::borrow::Cow;
use std::fmt::{self, Write};

use serde_json::json;

use super::results::AskedTypes;
use super::trace::Trace;
use super::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, LogLevel, meta, method};
use crate::protocol::jsonrpc::{Frame, RawObject};

/// A supported protocol version, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolVersion {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize` first, then a session.
    Legacy,
    /// Stateless: every request names its version.
    Modern,
}

impl ProtocolVersion {
    /// All versions, newest first.
    pub const ALL: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];
    /// The newest version with a handshake.
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;
    pub const LATEST: Self = Self::V2026_07_28;

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    pub fn era(self) -> Era {
        if self >= Self::V2026_07_28 { Era::Modern } else { Era::Legacy }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        })
    }
}

/// Writes requests to one server in the version that the handshake found.
#[derive(Debug)]
pub struct Dialect {
    version: ProtocolVersion,
    /// The end of the `params` of most requests: `,"_meta":{…}` for a modern server, else empty.
    plain_meta: String,
    has_tasks: bool,
}

/// The `_meta` of a caller's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallMeta {
    /// Whether to ask for progress. The token is the id of the request.
    pub progress: bool,
    /// The lowest level of log messages that the caller wants; `None`: none. Modern servers only.
    pub log_level: Option<LogLevel>,
    /// The caller's capabilities, a JSON object; `None`: none. Modern servers only.
    pub capabilities: Option<String>,
    /// The types of results that the capabilities ask for by extensions.
    pub asked: AskedTypes,
    /// The span that the server's own one is to belong to.
    pub trace: Option<Trace>,
    /// Further members, already checked: `,"name":value` each.
    pub others: String,
}

impl CallMeta {
    /// Returns whether this has nothing beyond what every request carries.
    fn is_plain(&self) -> bool {
        !self.progress
            && self.log_level.is_none()
            && self.capabilities.as_ref().is_none_or(|capabilities| capabilities == "{}")
            && self.trace.is_none()
            && self.others.is_empty()
    }
}

impl Dialect {
    pub fn new(version: ProtocolVersion) -> Self {
        let plain_meta = match version.era() {
            Era::Legacy => String::new(),
            Era::Modern => format!(",\"_meta\":{{{}}}", modern_meta(version, "{}")),
        };
        Self { version, plain_meta, has_tasks: false }
    }

    /// Notes whether the server declares the tasks extension, which only modern ones have.
    pub fn with_tasks(self, declared: bool) -> Self {
        Self { has_tasks: declared && self.version.era() == Era::Modern, ..self }
    }

    pub fn has_tasks(&self) -> bool {
        self.has_tasks
    }

    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Writes `tools/call`. `name` is a JSON string, quotes included; `others` are further members
    /// of `params`, `,"name":value` each.
    pub fn tools_call(
        &self,
        id: u64,
        name: &str,
        arguments: &RawObject,
        others: &str,
        meta: &CallMeta,
    ) -> Frame {
        let meta = &self.write_meta(id, meta);
        let before = ["{\"name\":", name, ",\"arguments\":"];
        Frame::request_around(id, method::TOOLS_CALL, &before, arguments, &[others, meta, "}"])
    }

    /// Writes any other request of a caller. `members` are those of `params`, `,"name":value` each.
    pub fn request(&self, id: u64, method: &str, members: &str, meta: &CallMeta) -> Frame {
        let members = format!("{members}{}", self.write_meta(id, meta));
        Frame::request(id, method, &["{", members.trim_start_matches(','), "}"])
    }

    /// Requests one page of `tools/list`.
    pub fn tools_list(&self, id: u64, cursor: Option<&str>) -> Frame {
        let cursor = cursor.map_or_else(String::new, |it| format!(",\"cursor\":{}", json!(it)));
        self.request(id, method::TOOLS_LIST, &cursor, &CallMeta::default())
    }

    /// Writes a request that any server can answer at once: `ping`, or `server/discover` in the
    /// modern era.
    pub fn ping(&self, id: u64) -> Frame {
        match self.version.era() {
            Era::Legacy => Frame::request(id, method::PING, &["{}"]),
            Era::Modern => discover(id),
        }
    }

    /// Writes `subscriptions/listen`; `notifications` is the filter. Modern servers only.
    pub fn listen(&self, id: u64, notifications: &serde_json::Value) -> Frame {
        let filter = format!(",\"notifications\":{notifications}");
        self.request(id, method::LISTEN, &filter, &CallMeta::default())
    }

    /// Writes `resources/subscribe` or `resources/unsubscribe`. Legacy servers only.
    pub fn about_resource(&self, id: u64, method: &str, uri: &str) -> Frame {
        self.request(id, method, &format!(",\"uri\":{}", json!(uri)), &CallMeta::default())
    }

    fn write_meta(&self, id: u64, meta: &CallMeta) -> Cow<'_, str> {
        if meta.is_plain() {
            return Cow::Borrowed(&self.plain_meta);
        }
        let mut members = String::new();
        if self.version.era() == Era::Modern {
            members = modern_meta(self.version, meta.capabilities.as_deref().unwrap_or("{}"));
            if let Some(level) = meta.log_level {
                let _ = write!(members, ",\"{}\":\"{}\"", meta::LOG_LEVEL, level.as_str());
            }
        }
        if meta.progress {
            let _ = write!(members, ",\"{}\":{id}", meta::PROGRESS_TOKEN);
        }
        meta.trace.iter().for_each(|trace| trace.write_members(&mut members));
        members.push_str(&meta.others);
        match members.trim_start_matches(',') {
            "" => Cow::Borrowed(""),
            members => Cow::Owned(format!(",\"_meta\":{{{members}}}")),
        }
    }
}

/// Writes `server/discover`, the probe that distinguishes the eras.
pub fn discover(id: u64) -> Frame {
    let meta = modern_meta(ProtocolVersion::LATEST, "{}");
    Frame::request(id, method::DISCOVER, &["{\"_meta\":{", &meta, "}}"])
}

/// Writes `initialize`, which offers the newest legacy version. `capabilities` is a JSON object. It
/// is empty on a shared connection: a request of the server could not reach the right caller.
pub fn initialize(id: u64, capabilities: &str) -> Frame {
    let (version, client) = (ProtocolVersion::LATEST_LEGACY, client_info());
    let params = format!(
        r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"clientInfo":{client}}}"#
    );
    Frame::request(id, method::INITIALIZE, &[&params])
}

/// Writes `notifications/initialized`, which ends the legacy handshake.
pub fn initialized() -> Frame {
    Frame::notification(method::INITIALIZED, "{}")
}

/// Writes `notifications/cancelled` for a request of the gateway.
pub fn cancelled(id: u64, reason: &str) -> Frame {
    Frame::notification(method::CANCELLED, &json!({"requestId": id, "reason": reason}).to_string())
}

/// Writes the members of `_meta` that every modern request has.
fn modern_meta(version: ProtocolVersion, capabilities: &str) -> String {
    let client = client_info();
    format!(
        r#""{}":"{version}","{}":{client},"{}":{capabilities}"#,
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES,
    )
}

fn client_info() -> String {
    format!(r#"{{"name":"{IMPLEMENTATION_NAME}","version":"{IMPLEMENTATION_VERSION}"}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn params_of(frame: &Frame) -> Value {
        let message: Value = serde_json::from_slice(&frame.bytes()).unwrap();
        message["params"].clone()
    }

    fn call(dialect: &Dialect, meta: &CallMeta) -> Frame {
        dialect.tools_call(1, "\"echo\"", &RawObject::empty(), "", meta)
    }

    #[test]
    fn a_callers_meta_is_written_in_the_form_of_each_era() {
        let meta = CallMeta {
            progress: true,
            log_level: Some(LogLevel::Info),
            capabilities: Some(r#"{"elicitation":{}}"#.into()),
            asked: AskedTypes::default(),
            trace: None,
            others: r#","x":1"#.into(),
        };
        let legacy = Dialect::new(ProtocolVersion::LATEST_LEGACY);
        assert_eq!(params_of(&call(&legacy, &meta))["_meta"], json!({"progressToken": 1, "x": 1}));
        let modern = params_of(&call(&Dialect::new(ProtocolVersion::LATEST), &meta));
        let modern = &modern["_meta"];
        assert_eq!(modern[meta::CLIENT_CAPABILITIES], json!({"elicitation": {}}));
        assert_eq!(modern[meta::LOG_LEVEL], "info");
        assert_eq!((&modern["progressToken"], &modern["x"]), (&json!(1), &json!(1)));
    }

    #[test]
    fn legacy_requests_carry_no_meta() {
        let dialect = Dialect::new(ProtocolVersion::LATEST_LEGACY);
        assert_eq!(params_of(&dialect.tools_list(1, None)), json!({}));
        assert_eq!(params_of(&dialect.tools_list(1, Some("a\"b"))), json!({"cursor": "a\"b"}));
        assert_eq!(
            params_of(&call(&dialect, &CallMeta::default())),
            json!({"name": "echo", "arguments": {}})
        );
    }

    #[test]
    fn modern_requests_say_version_and_empty_capabilities() {
        let dialect = Dialect::new(ProtocolVersion::LATEST);
        for frame in [
            dialect.tools_list(1, None),
            dialect.tools_list(1, Some("next")),
            call(&dialect, &CallMeta::default()),
            dialect.listen(1, &json!({})),
            discover(1),
        ] {
            let meta = &params_of(&frame)["_meta"];
            assert_eq!(meta[meta::PROTOCOL_VERSION], "2026-07-28");
            assert_eq!(meta[meta::CLIENT_CAPABILITIES], json!({}));
        }
    }
    #[test]
    fn names_round_trip_and_eras_split_at_2026() {
        for version in ProtocolVersion::ALL {
            assert_eq!(ProtocolVersion::parse(version.as_str()), Some(version));
        }
        assert_eq!(ProtocolVersion::LATEST.era(), Era::Modern);
        assert_eq!(ProtocolVersion::LATEST_LEGACY.era(), Era::Legacy);
        assert_eq!(ProtocolVersion::parse("2030-01-01"), None);
    }
}
