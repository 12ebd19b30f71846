//! Rewrites a tool's result: the part that a pointer leads to, instead of the whole; and no more
//! than `max_bytes`. A result that is cut says so.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::config::ResultOverride;
use crate::protocol::jsonrpc::members::{MemberChange, Members, ObjectWriter};
use crate::protocol::jsonrpc::pointer::Pointer;
use crate::protocol::mcp::meta;
use crate::protocol::mcp::params::text_of;

/// The change of a tool's results.
#[derive(Debug, Default)]
pub struct ResultChange {
    max_bytes: Option<usize>,
    pointer: Option<(String, Pointer)>,
}

/// Members of a result that stay when it is cut.
const KEPT: [&str; 2] = ["resultType", "isError"];

impl ResultChange {
    pub(super) fn new(config: &ResultOverride) -> Self {
        let pointer = config.pointer.as_ref();
        let pointer = pointer.and_then(|text| Some((text.clone(), Pointer::parse(text).ok()?)));
        Self { max_bytes: config.max_bytes, pointer }
    }

    /// Returns whether it changes any result.
    pub fn is_any(&self) -> bool {
        self.max_bytes.is_some() || self.pointer.is_some()
    }

    /// Returns the result for the caller. `kept` is the id of its call, if the call is kept: the
    /// whole result can be fetched by it.
    pub fn apply<'r>(&self, result: &'r str, kept: Option<&str>) -> Cow<'r, str> {
        let pointed = self.point(result).map_or(Cow::Borrowed(result), Cow::Owned);
        match self.max_bytes {
            Some(max) if pointed.len() > max => Cow::Owned(cut(&pointed, max, kept)),
            _ => pointed,
        }
    }

    /// Returns the result with the part that the pointer leads to as its only content. A failure
    /// of the tool stays as it is. A result without that part says so.
    fn point(&self, result: &str) -> Option<String> {
        let (text, pointer) = self.pointer.as_ref()?;
        let members = Members::parse(result).ok()?;
        if members.get("isError").is_some_and(|value| value.get() == "true") {
            return None;
        }
        let Some(part) = pointer.find(result, &mut 0) else {
            let note = json!({"pointer": text, "found": false});
            return Some(with_note(&members, meta::POINTED, &note));
        };
        let part = match serde_json::from_str::<String>(part) {
            Ok(text) => block(&text),
            Err(_) => block(part),
        };
        let content = format!("[{part}]");
        let change = |name: &str, _: &RawValue| match name {
            "content" => MemberChange::Replace(Cow::Owned(content.clone())),
            "structuredContent" => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        let is_missing = members.get("content").is_none();
        let add = [("content", content.as_str())];
        Some(members.rewrite(change, if is_missing { &add } else { &[] }))
    }
}

/// Writes a text as a block of content.
fn block(text: &str) -> String {
    format!("{{\"type\":\"text\",\"text\":{}}}", Value::from(text))
}

/// Adds a member to the `_meta` of a result.
fn with_note(members: &Members<'_>, name: &str, note: &Value) -> String {
    let old = members.get("_meta").and_then(|old| Members::parse(old.get()).ok());
    let note = note.to_string();
    let new = match old {
        Some(old) => old.rewrite(|_, _| MemberChange::Keep, &[(name, &note)]),
        None => {
            let mut new = ObjectWriter::with_capacity(note.len() + name.len() + 8);
            new.member(name, &note);
            new.finish()
        }
    };
    members.rewrite(|_, _| MemberChange::Keep, &[("_meta", &new)])
}

/// Cuts a result to `max` bytes of its texts. Everything else of it is left out.
fn cut(result: &str, max: usize, kept: Option<&str>) -> String {
    let members = Members::parse(result).ok();
    let member = |name| members.as_ref().and_then(|members| members.get(name));
    let blocks = member("content").map(RawValue::get).unwrap_or("[]");
    let blocks: Vec<&RawValue> = serde_json::from_str(blocks).unwrap_or_default();
    let (mut left, mut content) = (max, vec![]);
    for raw in blocks {
        let Ok(members) = Members::parse(raw.get()) else { continue };
        let kind = members.get("type").and_then(text_of);
        let Some(text) =
            members.get("text").and_then(text_of).filter(|_| kind.as_deref() == Some("text"))
        else {
            continue;
        };
        let text = &text[..text.floor_char_boundary(left)];
        left -= text.len();
        if !text.is_empty() {
            content.push(block(text));
        }
    }
    let bytes = result.len();
    let mut notice = format!("[This result was cut by `max_bytes`: it has {bytes} bytes.");
    let mut about = json!({"by": "max_bytes", "max_bytes": max, "bytes": bytes});
    if let Some(call) = kept {
        notice += &format!(" GET /v1/calls/{call}/result has all of it.");
        about["call"] = json!(call);
    }
    notice.push(']');
    content.push(block(&notice));
    let mut out = ObjectWriter::with_capacity(max + 512);
    for name in KEPT {
        if let Some(value) = member(name) {
            out.member(name, value.get());
        }
    }
    out.member("content", &format!("[{}]", content.join(",")));
    out.member("_meta", &json!({meta::CUT: about}).to_string());
    out.finish()
}
