//! Skills: the URIs in their entries, as they are exposed where several servers are shown together.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::names;
use super::params::text_of;
use crate::protocol::jsonrpc::members::{MemberChange, Members};

const URI: &str = "uri";
const RESOURCES: &str = "resources";

/// Returns a skill's entry with its URI and those of its files exposed; `None` if it has no URI or
/// is ambiguous.
pub fn expose_skill(entry: &str, server: &str) -> Option<String> {
    let members = Members::parse(entry).ok()?;
    text_of(members.get(URI)?)?;
    let files = match members.get(RESOURCES) {
        Some(files) if files.get().starts_with('[') => Some(expose_all(files, server)?),
        _ => None,
    };
    let change = |name: &str, value: &RawValue| match name {
        URI => exposed_uri(value, server),
        RESOURCES => {
            files.as_deref().map_or(MemberChange::Keep, |it| MemberChange::Replace(it.into()))
        }
        _ => MemberChange::Keep,
    };
    Some(members.rewrite(change, &[]))
}

/// Returns the result of `skills/get` or `resources/directory/read` with all URIs exposed.
pub fn expose_result(result: &str, server: &str) -> Option<String> {
    let members = Members::parse(result).ok()?;
    let (mut skill, mut resources) = (None, None);
    if let Some(entry) = members.get("skill") {
        skill = Some(expose_skill(entry.get(), server)?);
    }
    if let Some(children) = members.get(RESOURCES) {
        resources = Some(expose_all(children, server)?);
    }
    let change = |name: &str, _: &RawValue| {
        let new = match name {
            "skill" => skill.as_deref(),
            RESOURCES => resources.as_deref(),
            _ => None,
        };
        new.map_or(MemberChange::Keep, |it| MemberChange::Replace(it.into()))
    };
    Some(members.rewrite(change, &[]))
}

/// Exposes the URIs of a list of resources.
fn expose_all(list: &RawValue, server: &str) -> Option<String> {
    let list: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let exposed = |item: &&RawValue| {
        let change = |name: &str, value: &RawValue| match name {
            URI => exposed_uri(value, server),
            _ => MemberChange::Keep,
        };
        Some(Members::parse(item.get()).ok()?.rewrite(change, &[]))
    };
    let list = list.iter().map(exposed).collect::<Option<Vec<_>>>()?;
    Some(format!("[{}]", list.join(",")))
}

fn exposed_uri(uri: &RawValue, server: &str) -> MemberChange<'static> {
    match text_of(uri) {
        Some(uri) => {
            let uri = names::resource_uri(server, &uri);
            MemberChange::Replace(Cow::Owned(Value::from(uri).to_string()))
        }
        None => MemberChange::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_uris_of_a_skill_are_exposed_and_its_digests_stay() {
        let entry = |prefix: &str| {
            let uri = format!("skill://{prefix}git/SKILL.md");
            json!({
                "uri": uri,
                "frontmatter": {"name": "git", "description": "skill://git/x", "uri": "skill://y"},
                "resources": [
                    {"uri": uri, "digest": "sha256:1", "size": 1},
                    {"uri": format!("skill://{prefix}git/a/b.py"), "digest": "sha256:2", "size": 2},
                ],
            })
        };
        let exposed = expose_skill(&entry("").to_string(), "vcs").unwrap();
        assert_eq!(serde_json::from_str::<Value>(&exposed).unwrap(), entry("vcs/"));
        let result = json!({"resultType": "complete", "skill": entry(""), "ttlMs": 1});
        let exposed: Value =
            serde_json::from_str(&expose_result(&result.to_string(), "vcs").unwrap()).unwrap();
        assert_eq!((&exposed["skill"], &exposed["ttlMs"]), (&entry("vcs/"), &json!(1)));
        let dynamic = r#"{"uri":"github://o/r/SKILL.md","resources":"dynamic"}"#;
        assert_eq!(
            expose_skill(dynamic, "vcs").unwrap(),
            r#"{"uri":"trunkline:vcs/github://o/r/SKILL.md","resources":"dynamic"}"#
        );
        let directory = r#"{"resources":[{"uri":"skill://git/a","mimeType":"inode/directory"}]}"#;
        assert_eq!(
            expose_result(directory, "vcs").unwrap(),
            r#"{"resources":[{"uri":"skill://vcs/git/a","mimeType":"inode/directory"}]}"#
        );
        for odd in [r#"{"uri":7}"#, r#"{"uri":"a","uri":"b"}"#, r#"{"uri":"a","resources":[7]}"#] {
            assert_eq!(expose_skill(odd, "vcs"), None, "{odd}");
        }
    }
}
