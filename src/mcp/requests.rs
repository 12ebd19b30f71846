//! The requests and notifications that the gateway sends to a server.

use serde_json::json;

use super::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, ProtocolVersion, meta, method};
use crate::jsonrpc::{Frame, RawObject};

/// How requests to one server are written, decided once by its handshake.
///
/// The client capabilities are always empty: the connection is shared by many callers, and a server's
/// question could not be brought to the right one of them.
#[derive(Debug)]
pub struct Dialect {
    version: ProtocolVersion,
    /// What every request's `params` end with: `,"_meta":{…}` for a modern server, else nothing.
    meta_member: String,
}

impl Dialect {
    /// The way of writing that `version` asks for.
    pub fn new(version: ProtocolVersion) -> Self {
        let meta_member = match version.era() {
            super::Era::Legacy => String::new(),
            super::Era::Modern => format!(",\"_meta\":{}", modern_meta(version)),
        };
        Self { version, meta_member }
    }

    /// The version requests are written in.
    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// `tools/call`. `name` is a JSON string, quotes included.
    pub fn tools_call(&self, id: u64, name: &str, arguments: &RawObject) -> Frame {
        let params =
            ["{\"name\":", name, ",\"arguments\":", arguments.as_str(), &self.meta_member, "}"];
        Frame::request(id, method::TOOLS_CALL, &params)
    }

    /// `tools/list`, one page of it.
    pub fn tools_list(&self, id: u64, cursor: Option<&str>) -> Frame {
        let cursor = cursor.map(|cursor| format!(",\"cursor\":{}", json!(cursor)));
        self.request(id, method::TOOLS_LIST, cursor.as_deref().unwrap_or_default())
    }

    /// `subscriptions/listen` for changes of the tool list. Modern servers only.
    pub fn listen_for_tool_changes(&self, id: u64) -> Frame {
        self.request(id, method::LISTEN, ",\"notifications\":{\"toolsListChanged\":true}")
    }

    /// `members` each start with a comma, so that any of them can be missing.
    fn request(&self, id: u64, method: &str, members: &str) -> Frame {
        let members = format!("{members}{}", self.meta_member);
        Frame::request(id, method, &["{", members.trim_start_matches(','), "}"])
    }
}

/// `server/discover`: the probe that tells the eras apart.
pub fn discover(id: u64) -> Frame {
    let meta = modern_meta(ProtocolVersion::LATEST);
    Frame::request(id, method::DISCOVER, &["{\"_meta\":", &meta, "}"])
}

/// `initialize`, offering the newest legacy version.
pub fn initialize(id: u64) -> Frame {
    let params = json!({
        "protocolVersion": ProtocolVersion::LATEST_LEGACY.as_str(),
        "capabilities": {},
        "clientInfo": {"name": IMPLEMENTATION_NAME, "version": IMPLEMENTATION_VERSION},
    });
    Frame::request(id, method::INITIALIZE, &[&params.to_string()])
}

/// `notifications/initialized`: the end of the legacy handshake.
pub fn initialized() -> Frame {
    Frame::notification(method::INITIALIZED, "{}")
}

/// `notifications/cancelled` for a request of this side.
pub fn cancelled(id: u64, reason: &str) -> Frame {
    Frame::notification(method::CANCELLED, &json!({"requestId": id, "reason": reason}).to_string())
}

fn modern_meta(version: ProtocolVersion) -> String {
    json!({
        meta::PROTOCOL_VERSION: version.as_str(),
        meta::CLIENT_INFO: {"name": IMPLEMENTATION_NAME, "version": IMPLEMENTATION_VERSION},
        meta::CLIENT_CAPABILITIES: {},
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn params_of(frame: &Frame) -> Value {
        let message: Value = serde_json::from_slice(frame.as_bytes()).unwrap();
        message["params"].clone()
    }

    #[test]
    fn legacy_requests_carry_no_meta() {
        let dialect = Dialect::new(ProtocolVersion::LATEST_LEGACY);
        assert_eq!(params_of(&dialect.tools_list(1, None)), json!({}));
        assert_eq!(params_of(&dialect.tools_list(1, Some("a\"b"))), json!({"cursor": "a\"b"}));
        assert_eq!(
            params_of(&dialect.tools_call(1, "\"echo\"", &RawObject::empty())),
            json!({"name": "echo", "arguments": {}})
        );
    }

    #[test]
    fn modern_requests_say_version_and_empty_capabilities() {
        let dialect = Dialect::new(ProtocolVersion::LATEST);
        for frame in [
            dialect.tools_list(1, None),
            dialect.tools_list(1, Some("next")),
            dialect.tools_call(1, "\"echo\"", &RawObject::empty()),
            dialect.listen_for_tool_changes(1),
            discover(1),
        ] {
            let meta = &params_of(&frame)["_meta"];
            assert_eq!(meta[meta::PROTOCOL_VERSION], "2026-07-28");
            assert_eq!(meta[meta::CLIENT_CAPABILITIES], json!({}));
        }
    }
}
