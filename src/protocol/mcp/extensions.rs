//! Extensions of the protocol: the methods that they add, and those that a server declares.
//!
//! The gateway knows the methods of a few extensions. Any other method that the protocol does not
//! define is taken for one of an extension that the gateway does not know.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::method;
use crate::protocol::jsonrpc::members::Members;

pub const SKILLS: &str = "io.modelcontextprotocol/skills";
pub const TASKS: &str = "io.modelcontextprotocol/tasks";
/// MCP Apps.
pub const APPS: &str = "io.modelcontextprotocol/ui";
pub const EVENTS: &str = "io.modelcontextprotocol/events";
/// Some servers declare events as a capability of this name.
pub const EVENTS_CAPABILITY: &str = "events";

/// Capabilities that the protocol defines, or that hold declarations of others.
const CORE_CAPABILITIES: [&str; 8] = [
    "completions",
    "experimental",
    "extensions",
    "logging",
    "prompts",
    "resources",
    "tasks",
    "tools",
];
/// Begin the methods that the protocol defines or keeps for itself.
const CORE_FAMILIES: [&str; 12] = [
    "completion",
    "elicitation",
    "logging",
    "notifications",
    "prompts",
    "resources",
    "roots",
    "sampling",
    "server",
    "subscriptions",
    "tasks",
    "tools",
];
/// Follow `notifications/` in notifications of the protocol that are of no family.
const CORE_NOTIFICATIONS: [&str; 4] = ["cancelled", "initialized", "message", "progress"];
const NOTIFICATIONS: &str = "notifications/";
/// Tells that the skills of a server have changed.
pub const SKILLS_CHANGED: &str = "notifications/skills/list_changed";
const METHOD_LEN_MAX: usize = 128;

/// Returns the name under which a method of an extension is counted, and `None` for a method of the
/// protocol. A caller may invent methods, so those of unknown extensions share one name.
pub fn counted_as(method: &str) -> Option<&'static str> {
    let known = [
        method::SKILLS_GET,
        method::DIRECTORY_READ,
        method::TASKS_GET,
        method::TASKS_UPDATE,
        method::TASKS_CANCEL,
    ];
    if let Some(known) = known.into_iter().find(|known| *known == method) {
        return Some(known);
    }
    let (family, _) = method.split_once('/')?;
    let is_plain = method.len() <= METHOD_LEN_MAX && method.bytes().all(is_plain);
    // `skills/list` is a list like those of the protocol.
    let is_known = CORE_FAMILIES.contains(&family) || method == method::SKILLS_LIST;
    (is_plain && !is_known).then_some(method::EXTENSION)
}

/// Returns whether a method is one of the tasks extension.
pub fn is_of_tasks(method: &str) -> bool {
    [method::TASKS_GET, method::TASKS_UPDATE, method::TASKS_CANCEL].contains(&method)
}

/// Returns the method of an extension's notification without `notifications/`, and `None` for a
/// notification of the protocol. Those about tasks name them by ids of their server's, which
/// nobody else knows.
pub fn notified(method: &str) -> Option<&str> {
    let own = method.strip_prefix(NOTIFICATIONS)?;
    let family = own.split_once('/').map_or(own, |(family, _)| family);
    let is_core = CORE_FAMILIES.contains(&family) || CORE_NOTIFICATIONS.contains(&family);
    (!is_core && method.len() <= METHOD_LEN_MAX && method.bytes().all(is_plain)).then_some(own)
}

/// Returns whether an extension may be the one that adds a notification.
pub fn adds(extension: &str, notification: &str) -> bool {
    match extension {
        SKILLS => notification.starts_with("notifications/skills/"),
        // Apps notify their hosts alone.
        TASKS | APPS => false,
        _ => !notification.starts_with("notifications/skills/"),
    }
}

/// Returns whether a notification says only that a list has changed.
pub fn is_of_list(method: &str) -> bool {
    method.ends_with("/list_changed")
}

/// Returns whether a byte of a method is written into frames and headers as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-:$~".contains(&byte)
}

/// Returns the names of the extensions that a client declares, and of its capabilities.
pub fn declared_by_client(capabilities: &str) -> Vec<String> {
    let Ok(members) = Members::parse(capabilities) else { return vec![] };
    let extensions = members.get("extensions").and_then(|it| Members::parse(it.get()).ok());
    let extensions = extensions.iter().flat_map(Members::iter).map(|(name, _)| name.to_owned());
    let own = members.iter().map(|(name, _)| name.to_owned());
    extensions.chain(own.filter(|name| !CORE_CAPABILITIES.contains(&name.as_str()))).collect()
}

/// Returns whether a method is one of the events extension.
pub fn is_of_events(method: &str) -> bool {
    method.split_once('/').is_some_and(|(family, _)| family == EVENTS_CAPABILITY)
}

/// The extensions, and the capabilities that the protocol does not define, of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    has_skills: bool,
    reads_directories: bool,
    pub has_tasks: bool,
    has_events: bool,
    pub has_tools: bool,
    /// Whether there is an extension whose methods the gateway does not know.
    has_unknown: bool,
    capabilities: Vec<String>,
    /// The names of all extensions, and of the capabilities.
    names: Arc<[String]>,
}

impl Declared {
    /// Reads the capabilities of a server: a JSON object. Ambiguous ones declare nothing.
    pub fn of(capabilities: &str) -> Self {
        let Ok(members) = Members::parse(capabilities) else { return Self::default() };
        let names = members.iter().map(|(name, _)| name.to_owned());
        let capabilities: Vec<_> =
            names.filter(|name| !CORE_CAPABILITIES.contains(&name.as_str())).collect();
        let has_events = capabilities.iter().any(|name| name == EVENTS_CAPABILITY);
        let has_tools = members.get("tools").is_some();
        let mut declared = Self { capabilities, has_events, has_tools, ..Self::default() };
        let extensions = members.get("extensions");
        let extensions = extensions.and_then(|it| Members::parse(it.get()).ok());
        let names = extensions.iter().flat_map(Members::iter).map(|(name, _)| name.to_owned());
        declared.names = names.chain(declared.capabilities.iter().cloned()).collect();
        for (name, settings) in extensions.iter().flat_map(Members::iter) {
            match name {
                SKILLS => {
                    declared.has_skills = true;
                    declared.reads_directories = has_flag(settings, "directoryRead");
                }
                TASKS => declared.has_tasks = true,
                EVENTS => declared.has_events = true,
                // Its methods are between a host and a page of its own.
                APPS => {}
                _ => declared.has_unknown = true,
            }
        }
        declared
    }

    pub fn names(&self) -> &Arc<[String]> {
        &self.names
    }

    /// Returns whether the server has declared what adds this notification, without
    /// `notifications/`.
    pub fn notifies(&self, method: &str) -> bool {
        let is_of_skills = method.starts_with("skills/");
        if is_of_skills { self.has_skills || self.has_unknown } else { self.has(method) }
    }

    /// Returns whether the server has declared what adds this method.
    pub fn has(&self, method: &str) -> bool {
        match method {
            method::SKILLS_LIST | method::SKILLS_GET => self.has_skills,
            method::DIRECTORY_READ => self.reads_directories,
            tasks if is_of_tasks(tasks) => self.has_tasks,
            events if is_of_events(events) => self.has_events,
            other => {
                let family = other.split_once('/').map_or(other, |(family, _)| family);
                self.has_unknown || self.capabilities.iter().any(|name| name == family)
            }
        }
    }
}

fn has_flag(settings: &RawValue, name: &str) -> bool {
    let settings = Members::parse(settings.get());
    settings.is_ok_and(|settings| settings.get(name).is_some_and(|flag| flag.get() == "true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_the_protocol_are_of_no_extension() {
        for method in [
            "initialize",
            "ping",
            "tools/call",
            "tools/invented",
            "resources/read",
            "tasks/result",
            "tasks/list",
            "sampling/createMessage",
            "notifications/x",
            "skills/list",
            "x",
            "",
            "x/y z",
            "x/é",
            // Text that would end the string in the frame.
            "x/y\",\"params\":{},\"z\":\"",
            "x/y\\",
            "x/y\n",
            &format!("x/{}", "y".repeat(METHOD_LEN_MAX)),
        ] {
            assert_eq!(counted_as(method), None, "{method}");
        }
        for (method, name) in [
            ("skills/get", "skills/get"),
            ("resources/directory/read", "resources/directory/read"),
            ("tasks/get", "tasks/get"),
            ("events/list", "extension"),
            ("com.example/anything/else", "extension"),
        ] {
            assert_eq!(counted_as(method), Some(name), "{method}");
        }
    }

    #[test]
    fn notifications_of_the_protocol_are_of_no_extension() {
        for method in [
            "notifications/progress",
            "notifications/message",
            "notifications/tools/list_changed",
            "notifications/resources/updated",
            "notifications/tasks",
            "notifications/tasks/status",
            "x/y",
            "notifications/x\"y",
        ] {
            assert_eq!(notified(method), None, "{method}");
        }
        assert_eq!(notified("notifications/x/y"), Some("x/y"));
        let skills = Declared::of(&format!(r#"{{"extensions":{{"{SKILLS}":{{}}}}}}"#));
        assert!(skills.notifies("skills/list_changed") && !skills.notifies("x/y"));
        assert_eq!(&skills.names()[..], [SKILLS]);
        let client = r#"{"extensions":{"a/b":{}},"roots":{},"elicitation":{},"new":{}}"#;
        let declared = declared_by_client(client);
        assert!(declared.contains(&"a/b".to_owned()) && declared.contains(&"new".to_owned()));
    }

    #[test]
    fn a_server_has_the_methods_of_what_it_declares_alone() {
        let declared = |extensions: &str| {
            Declared::of(&format!(r#"{{"tools":{{}},"new":{{}},"extensions":{{{extensions}}}}}"#))
        };
        let skills = declared(r#""io.modelcontextprotocol/skills":{"directoryRead":true}"#);
        let plain = declared(r#""io.modelcontextprotocol/skills":{}"#);
        for method in ["skills/list", "skills/get", "new/thing"] {
            assert!(skills.has(method) && plain.has(method), "{method}");
        }
        assert!(skills.has("resources/directory/read") && !plain.has("resources/directory/read"));
        for method in ["tasks/get", "events/list", "x/y"] {
            assert!(!skills.has(method), "{method}");
        }
        assert!(declared(r#""io.modelcontextprotocol/tasks":{}"#).has("tasks/get"));
        assert!(declared(r#""x/y":{}"#).has("anything/else"));
        assert!(!declared(r#""x/y":{}"#).has("tasks/get"));
        // Apps add no methods between client and server.
        assert!(!declared(r#""io.modelcontextprotocol/ui":{}"#).has("ui/initialize"));
        assert!(Declared::of(r#"{"events":{}}"#).has("events/list"));
        assert_eq!(Declared::of(r#"{"extensions":{},"extensions":{}}"#), Declared::default());
    }
}
