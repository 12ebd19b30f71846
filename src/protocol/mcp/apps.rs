//! MCP Apps: a tool names the page that shows its results, a resource with a URI `ui://…`, in its
//! definition.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::names;
use super::params::text_of;
use crate::protocol::jsonrpc::members::{MemberChange, Members};

const META: &str = "_meta";
const UI: &str = "ui";
const RESOURCE_URI: &str = "resourceUri";
/// Earlier versions of the extension have this member of `_meta`.
const FLAT: &str = "ui/resourceUri";
const SCHEME: &str = "ui://";

/// Returns whether a tool's definition names a resource as its page.
pub fn names_page(definition: &str, uri: &str) -> bool {
    let Some(meta) = meta_of(definition) else { return false };
    let Ok(meta) = Members::parse(meta.get()) else { return false };
    let is_it = |value: &RawValue| text_of(value).is_some_and(|text| text == uri);
    let nested = meta.get(UI).and_then(|ui| Members::parse(ui.get()).ok());
    let nested = nested.and_then(|ui| ui.get(RESOURCE_URI));
    uri.starts_with(SCHEME) && [nested, meta.get(FLAT)].into_iter().flatten().any(is_it)
}

/// Returns a tool's definition with the URI of its page as it is exposed where several servers are
/// shown together.
pub fn expose_page<'a>(definition: &'a str, server: &str) -> Cow<'a, str> {
    exposed(definition, server).map_or(Cow::Borrowed(definition), Cow::Owned)
}

fn exposed(definition: &str, server: &str) -> Option<String> {
    let meta = Members::parse(meta_of(definition)?.get()).ok()?;
    let new_uri = |value: &RawValue| match text_of(value) {
        Some(uri) if uri.starts_with(SCHEME) => {
            let uri = Value::from(names::resource_uri(server, &uri)).to_string();
            MemberChange::Replace(Cow::Owned(uri))
        }
        _ => MemberChange::Keep,
    };
    let ui = meta.get(UI).and_then(|ui| Members::parse(ui.get()).ok());
    let ui = ui.map(|ui| {
        let change = |name: &str, value: &RawValue| match name {
            RESOURCE_URI => new_uri(value),
            _ => MemberChange::Keep,
        };
        ui.rewrite(change, &[])
    });
    let of_meta = |name: &str, value: &RawValue| match (name, &ui) {
        (UI, Some(ui)) => MemberChange::Replace(Cow::Borrowed(ui.as_str())),
        (FLAT, _) => new_uri(value),
        _ => MemberChange::Keep,
    };
    if meta.get(UI).is_none() && meta.get(FLAT).is_none() {
        return None;
    }
    let meta = meta.rewrite(of_meta, &[]);
    let of_tool = |name: &str, _: &RawValue| match name {
        META => MemberChange::Replace(Cow::Borrowed(meta.as_str())),
        _ => MemberChange::Keep,
    };
    Some(Members::parse(definition).ok()?.rewrite(of_tool, &[]))
}

fn meta_of(definition: &str) -> Option<&RawValue> {
    // Few tools have a page, and no other definition is parsed.
    if !definition.contains("\"ui") {
        return None;
    }
    Members::parse(definition).ok()?.get(META)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_tool_is_exposed_and_everything_else_stays() {
        let tool = r#"{"name":"t", "x":1.10,"_meta":{"ui":{"visibility":["app"],
            "resourceUri":"ui:\/\/clock\/a.html"},"ui/resourceUri":"ui://clock/a.html","y":"ui"}}"#;
        let exposed = expose_page(tool, "time");
        let shown: Value = serde_json::from_str(&exposed).unwrap();
        assert_eq!(shown["_meta"]["ui"]["resourceUri"], "ui://time/clock/a.html");
        assert_eq!(shown["_meta"]["ui"]["visibility"][0], "app");
        assert_eq!(shown["_meta"]["ui/resourceUri"], "ui://time/clock/a.html");
        assert!(exposed.contains(r#""x":1.10"#), "{exposed}");
        assert!(names_page(tool, "ui://clock/a.html"));
        assert!(!names_page(tool, "ui://clock/b.html"));
        for plain in [
            r#"{"name":"t","_meta":{"z":"ui://x"}}"#,
            r#"{"name":"ui"}"#,
            r#"{"name":"t","_meta":{"ui":1,"ui":2}}"#,
        ] {
            assert_eq!(expose_page(plain, "time"), plain);
            assert!(!names_page(plain, "ui://x"));
        }
        let secret = r#"{"_meta":{"ui":{"resourceUri":"file:///secret"}}}"#;
        assert!(!names_page(secret, "file:///secret"));
        assert_eq!(expose_page(secret, "time"), secret);
    }
}
