//! The capabilities of a client that are declared to a server.

use serde_json::Value;

use super::Scope;
use crate::protocol::mcp::Era;
use crate::protocol::mcp::extensions;
use crate::protocol::mcp::results::AskedTypes;

/// Extensions that are carried wherever servers are shown; others only where one alone is.
const CARRIED: [&str; 3] = [extensions::APPS, extensions::SKILLS, extensions::TASKS];

/// Removes what the gateway does not carry from a client's capabilities: a JSON object. Returns
/// them, and the types of results that they ask for. Tasks are carried in the modern era alone.
pub(super) fn supported_capabilities(
    capabilities: &str,
    scope: &Scope,
    era: Era,
) -> (String, AskedTypes) {
    if !capabilities.contains("tasks") && !capabilities.contains("extensions") {
        return (capabilities.to_owned(), AskedTypes::default());
    }
    let Ok(mut capabilities) = serde_json::from_str::<Value>(capabilities) else {
        return ("{}".to_owned(), AskedTypes::default());
    };
    let mut asked = AskedTypes::default();
    if let Some(members) = capabilities.as_object_mut() {
        members.remove("tasks");
        let shows_one = matches!(scope, Scope::One(_));
        if let Some(Value::Object(extensions)) = members.get_mut("extensions") {
            extensions.retain(|name, _| {
                let is_tasks = name == extensions::TASKS;
                (shows_one || CARRIED.contains(&name.as_str())) && !(is_tasks && era == Era::Legacy)
            });
            asked.tasks = extensions.contains_key(extensions::TASKS);
            asked.others = extensions.keys().any(|name| !CARRIED.contains(&name.as_str()));
            if extensions.is_empty() {
                members.remove("extensions");
            }
        } else {
            members.remove("extensions");
        }
    }
    (capabilities.to_string(), asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn extensions_are_declared_where_they_are_carried() {
        let tasks = extensions::TASKS;
        let given = json!({"extensions": {"x/y": {}, tasks: {}}, "tasks": {}, "roots": {}});
        let supported = |scope: &Scope, era| {
            let (capabilities, asked) = supported_capabilities(&given.to_string(), scope, era);
            let capabilities: Value = serde_json::from_str(&capabilities).unwrap();
            (capabilities, asked.tasks, asked.others)
        };
        let one = Scope::One("a".to_owned());
        let all = json!({"extensions": {"x/y": {}, tasks: {}}, "roots": {}});
        assert_eq!(supported(&one, Era::Modern), (all, true, true));
        let known = json!({"extensions": {tasks: {}}, "roots": {}});
        assert_eq!(supported(&Scope::All, Era::Modern), (known, true, false));
        let legacy = json!({"extensions": {"x/y": {}}, "roots": {}});
        assert_eq!(supported(&one, Era::Legacy), (legacy, false, true));
        assert_eq!(supported(&Scope::All, Era::Legacy), (json!({"roots": {}}), false, false));
    }
}
