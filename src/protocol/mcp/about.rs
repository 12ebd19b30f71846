//! A server's description of itself, in its own words: the parts of the results of `initialize` and
//! `server/discover` that the gateway does not read.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::extensions::{self, Declared};
use super::{Era, meta};
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
    declared: Declared,
    /// `,"name":value` each; of the result, and of its `_meta`.
    others: String,
    meta: String,
}

/// Decides which capabilities of a server a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The client may use all of the server, not some tools only.
    pub whole: bool,
    /// The era of the client. Tasks are of the modern one.
    pub era: Era,
    /// The gateway makes tasks of slow calls, whatever the server does.
    pub makes_tasks: bool,
    /// The process is the client's or its tenant's own.
    pub own_process: bool,
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
        let capabilities = object(members.get("capabilities"));
        let meta = of_meta.map(|it| write(&it, |name| name != meta::SERVER_INFO));
        Some(Self {
            server_info: object(members.get("serverInfo").or(info)),
            declared: capabilities.as_deref().map(|it| Declared::of(it.get())).unwrap_or_default(),
            capabilities,
            others: short(write(&members, |name| !WRITTEN_ANEW.contains(&name))),
            meta: short(meta.unwrap_or_default()),
        })
    }

    /// Returns the server's name and all that it says with it: a JSON object.
    pub fn server_info(&self) -> Option<&str> {
        self.server_info.as_deref().map(RawValue::get)
    }

    pub fn declared(&self) -> &Declared {
        &self.declared
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
    /// carried as the modern era has them, events only to a process of the client's own.
    pub fn capabilities(&self, shown: Shown) -> Option<String> {
        let members = Members::parse(self.capabilities.as_deref()?.get()).ok()?;
        let extensions = self.extensions(&members, shown);
        let change = |name: &str, value| match name {
            "tools" => with_list_changed(value),
            "logging" => MemberChange::Keep,
            _ if !shown.whole => MemberChange::Drop,
            "prompts" | "resources" => with_list_changed(value),
            "tasks" => MemberChange::Drop,
            extensions::EVENTS_CAPABILITY if !shown.own_process => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        let extensions = extensions.as_deref().map(|it| ("extensions", it));
        Some(members.rewrite(change, extensions.as_slice()))
    }

    /// Returns the extensions as a client sees them, if there are any.
    fn extensions(&self, capabilities: &Members<'_>, shown: Shown) -> Option<String> {
        let is_modern = shown.era == Era::Modern;
        let own = capabilities.get("extensions").filter(|_| shown.whole);
        let own = own.map_or("{}", RawValue::get);
        let own = Members::parse(own).ok()?;
        let change = |name: &str, _: &RawValue| match name {
            extensions::TASKS if !is_modern => MemberChange::Drop,
            extensions::EVENTS if !shown.own_process => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        let adds_tasks = is_modern && shown.makes_tasks && !self.declared.has_tasks;
        let tasks = adds_tasks.then_some((extensions::TASKS, "{}"));
        let written = own.rewrite(change, tasks.as_slice());
        (written != "{}" || capabilities.get("extensions").is_some() && shown.whole)
            .then_some(written)
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(whole: bool, era: Era) -> Shown {
        Shown { whole, era, makes_tasks: false, own_process: false }
    }

    fn capabilities(written: &Value, shown: Shown) -> Value {
        let result = json!({"capabilities": written}).to_string();
        let shown = OwnWords::of(result.as_bytes()).capabilities(shown);
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
            "tasks": {"list": {}}, "events": {},
            "extensions": {extensions::TASKS: {"a": 1}, "x/y": {"z": 1}},
        });
        let mut seen = json!({
            "tools": {"x": 1, "listChanged": true}, "prompts": {"listChanged": true},
            "resources": {"subscribe": true, "listChanged": true},
            "logging": {}, "completions": {}, "experimental": {"x": {}}, "new": {"y": 1},
            "extensions": {"x/y": {"z": 1}},
        });
        assert_eq!(capabilities(&written, shown(true, Era::Legacy)), seen);
        seen["extensions"][extensions::TASKS] = json!({"a": 1});
        assert_eq!(capabilities(&written, shown(true, Era::Modern)), seen);
        let makes_tasks = Shown { makes_tasks: true, ..shown(true, Era::Modern) };
        assert_eq!(capabilities(&written, makes_tasks), seen);
        seen["events"] = json!({});
        let own = Shown { own_process: true, ..shown(true, Era::Modern) };
        assert_eq!(capabilities(&written, own), seen);
        let mut tools = json!({"tools": {"x": 1, "listChanged": true}, "logging": {}});
        assert_eq!(capabilities(&written, shown(false, Era::Modern)), tools);
        let makes_tasks = Shown { whole: false, ..makes_tasks };
        let plain = json!({"tools": {"x": 1}, "logging": {}});
        tools["extensions"] = json!({extensions::TASKS: {}});
        assert_eq!(capabilities(&plain, makes_tasks), tools);
    }
}
