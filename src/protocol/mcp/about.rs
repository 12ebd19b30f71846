//! A server's description of itself, in its own words: the parts of the results of `initialize` and
//! `server/discover` that the gateway does not read.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{TASKS_EXTENSION, meta};
use crate::protocol::jsonrpc::members::{MemberChange, Members, write_name};

/// A longer part of a description is cut down to what the gateway reads. Icons may be in one.
const LEN_MAX: usize = 256 * 1024;
/// Members of the results that the gateway writes anew.
const WRITTEN_ANEW: [&str; 9] = [
    "_meta",
    "cacheScope",
    "capabilities",
    "instructions",
    "protocolVersion",
    "resultType",
    "serverInfo",
    "supportedVersions",
    "ttlMs",
];

#[derive(Debug, Default)]
pub struct OwnWords {
    server_info: Option<Box<RawValue>>,
    capabilities: Option<Box<RawValue>>,
    /// `,"name":value` each; of the result, and of its `_meta`.
    others: String,
    meta: String,
}

/// Decides which capabilities of a server a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The client may use all of the server, not some tools only.
    pub whole: bool,
    /// Client and server are of the modern era, and the gateway carries extensions between them.
    pub extensions: bool,
}

impl OwnWords {
    /// Reads a result. An ambiguous one says nothing.
    pub fn of(result: &[u8]) -> Self {
        std::str::from_utf8(result).ok().and_then(Self::read).unwrap_or_default()
    }

    fn read(result: &str) -> Option<Self> {
        let members = Members::parse(result).ok()?;
        let of_meta = members.get("_meta").and_then(|meta| Members::parse(meta.get()).ok());
        let info = of_meta.as_ref().and_then(|it| it.get(meta::SERVER_INFO));
        let is_fine =
            |value: &&RawValue| value.get().starts_with('{') && value.get().len() <= LEN_MAX;
        let object = |value: Option<&RawValue>| value.filter(is_fine).map(ToOwned::to_owned);
        let short = |text: String| if text.len() <= LEN_MAX { text } else { String::new() };
        let meta = of_meta.map(|it| write(&it, |name| name != meta::SERVER_INFO));
        Some(Self {
            server_info: object(members.get("serverInfo").or(info)),
            capabilities: object(members.get("capabilities")),
            others: short(write(&members, |name| !WRITTEN_ANEW.contains(&name))),
            meta: short(meta.unwrap_or_default()),
        })
    }

    /// Returns the server's name and all that it says with it: a JSON object.
    pub fn server_info(&self) -> Option<&str> {
        self.server_info.as_deref().map(RawValue::get)
    }

    /// Writes further members of the result: `,"name":value` each.
    pub fn others(&self) -> &str {
        &self.others
    }

    /// Writes further members of its `_meta`.
    pub fn meta(&self) -> &str {
        &self.meta
    }

    /// Returns the capabilities as a client sees them, a JSON object, if they are readable. Changes
    /// of lists are always told, because a restart of the server may change its lists. Tasks are
    /// not carried.
    pub fn capabilities(&self, shown: Shown) -> Option<String> {
        let members = Members::parse(self.capabilities.as_deref()?.get()).ok()?;
        let change = |name: &str, value| match name {
            "tools" => with_list_changed(value),
            "logging" => MemberChange::Keep,
            _ if !shown.whole => MemberChange::Drop,
            "prompts" | "resources" => with_list_changed(value),
            "tasks" => MemberChange::Drop,
            "extensions" if shown.extensions => without_tasks(value),
            "extensions" => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        Some(members.rewrite(change, &[]))
    }
}

fn write(members: &Members<'_>, is_written: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    for (name, value) in members.iter().filter(|(name, _)| is_written(name)) {
        out.push(',');
        write_name(&mut out, name);
        out.push(':');
        out.push_str(value.get());
    }
    out
}

fn with_list_changed(capability: &RawValue) -> MemberChange<'static> {
    const CHANGES: &str = "listChanged";
    let Ok(members) = Members::parse(capability.get()) else { return MemberChange::Drop };
    let keep = |_: &str, _| MemberChange::Keep;
    MemberChange::Replace(Cow::Owned(members.rewrite(keep, &[(CHANGES, "true")])))
}

fn without_tasks(extensions: &RawValue) -> MemberChange<'static> {
    let Ok(members) = Members::parse(extensions.get()) else { return MemberChange::Drop };
    let change = |name: &str, _| match name {
        TASKS_EXTENSION => MemberChange::Drop,
        _ => MemberChange::Keep,
    };
    MemberChange::Replace(Cow::Owned(members.rewrite(change, &[])))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn capabilities(written: &Value, whole: bool, extensions: bool) -> Value {
        let result = json!({"capabilities": written}).to_string();
        let shown = OwnWords::of(result.as_bytes()).capabilities(Shown { whole, extensions });
        serde_json::from_str(&shown.unwrap()).unwrap()
    }

    #[test]
    fn a_server_is_described_as_it_describes_itself() {
        let legacy = r#"{"protocolVersion":"2025-11-25","capabilities":{},"x":1.10,
            "serverInfo":{"name":"\ud800","icons":[{"src":"data:"}],"websiteUrl":"https://x"},
            "instructions":"i","_meta":{"a/b":[1]}}"#;
        let modern = r#"{"resultType":"complete","supportedVersions":[],"capabilities":{},"ttlMs":1,
            "cacheScope":"public","instructions":"i","x":1.10,"_meta":{"a/b":[1],
            "io.modelcontextprotocol/serverInfo":
            {"name":"\ud800","icons":[{"src":"data:"}],"websiteUrl":"https://x"}}}"#;
        for result in [legacy, modern] {
            let words = OwnWords::of(result.as_bytes());
            let info = r#"{"name":"\ud800","icons":[{"src":"data:"}],"websiteUrl":"https://x"}"#;
            assert_eq!(words.server_info(), Some(info));
            assert_eq!((words.others(), words.meta()), (r#","x":1.10"#, r#","a/b":[1]"#));
        }
        let long = format!(r#"{{"serverInfo":{{"x":"{}"}}}}"#, "y".repeat(LEN_MAX));
        for odd in ["[]", "7", r#"{"serverInfo":7}"#, r#"{"a":1,"a":2}"#, &long] {
            assert_eq!(OwnWords::of(odd.as_bytes()).server_info(), None);
        }
    }

    #[test]
    fn capabilities_are_those_that_the_gateway_carries() {
        let written = json!({
            "tools": {"x": 1}, "prompts": {"listChanged": false}, "resources": {"subscribe": true},
            "logging": {}, "completions": {}, "experimental": {"x": {}}, "new": {"y": 1},
            "tasks": {"list": {}}, "extensions": {TASKS_EXTENSION: {}, "x/y": {"z": 1}},
        });
        let mut shown = json!({
            "tools": {"x": 1, "listChanged": true}, "prompts": {"listChanged": true},
            "resources": {"subscribe": true, "listChanged": true},
            "logging": {}, "completions": {}, "experimental": {"x": {}}, "new": {"y": 1},
        });
        assert_eq!(capabilities(&written, true, false), shown);
        shown["extensions"] = json!({"x/y": {"z": 1}});
        assert_eq!(capabilities(&written, true, true), shown);
        let tools = json!({"tools": {"x": 1, "listChanged": true}, "logging": {}});
        assert_eq!(capabilities(&written, false, true), tools);
    }
}
