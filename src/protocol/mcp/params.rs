//! The `params` of a client's request: parsed once, and rebuilt from the parsed members for the
//! server.
//!
//! If the gateway checks one member and the server obeys another, a caller can bypass the checks.
//! So duplicate names are refused, and names that differ from a known one in case only. Unknown
//! members are passed on.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::trace::Trace;
use super::{LogLevel, meta};
use crate::protocol::jsonrpc::members::{Members, MembersError, write_name};

/// Members of `params` that methods define.
const KNOWN: &[&str] = &[
    "_meta",
    "argument",
    "arguments",
    "capabilities",
    "clientInfo",
    "context",
    "cursor",
    "inputResponses",
    "level",
    "name",
    "notifications",
    "protocolVersion",
    "reason",
    "ref",
    "requestId",
    "requestState",
    "task",
    "taskId",
    "uri",
];

/// Members of `_meta` that the protocol or the gateway defines. They concern one hop only, and are
/// written anew for the next one.
const KNOWN_META: &[&str] = &[
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
    meta::SUBSCRIPTION_ID,
    meta::PROGRESS_TOKEN,
    meta::TIMEOUT,
    meta::TRACEPARENT,
    meta::TRACESTATE,
    "baggage",
];

/// Progress tokens are echoed with every notification, so their length is limited.
const TOKEN_LEN_MAX: usize = 1024;

#[derive(Debug)]
pub struct Params<'a> {
    members: Option<Members<'a>>,
    meta: Option<Members<'a>>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    #[error("`{at}`: {error}")]
    Members { at: &'static str, error: MembersError },
    #[error(
        "`{at}` has a member {name:?}: names must be written exactly as the protocol spells them"
    )]
    CaseVariant { at: &'static str, name: String },
    #[error("`params.{0}` is missing")]
    Missing(&'static str),
    #[error("`{at}` must be {expected}")]
    WrongType { at: Cow<'static, str>, expected: &'static str },
}

impl<'a> Params<'a> {
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, ParamsError> {
        let members = params.map(|params| read("params", params, KNOWN)).transpose()?;
        let meta = members.as_ref().and_then(|members| members.get("_meta"));
        let meta = meta.map(|meta| read("params._meta", meta, KNOWN_META)).transpose()?;
        Ok(Self { members, meta })
    }

    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.members.as_ref()?.get(name)
    }

    /// Returns a required member that is a string.
    pub fn text(&self, name: &'static str) -> Result<Cow<'a, str>, ParamsError> {
        let value = self.get(name).ok_or(ParamsError::Missing(name))?;
        text_of(value).ok_or_else(|| ParamsError::WrongType {
            at: format!("params.{name}").into(),
            expected: "a string",
        })
    }

    pub fn meta(&self, name: &str) -> Option<&'a RawValue> {
        self.meta.as_ref()?.get(name)
    }

    pub fn progress_token(&self) -> Result<Option<&'a RawValue>, ParamsError> {
        let token = self.meta(meta::PROGRESS_TOKEN);
        let is_valid = |token: &RawValue| {
            let is_scalar = matches!(token.get().as_bytes()[0], b'"' | b'-' | b'0'..=b'9');
            is_scalar && token.get().len() <= TOKEN_LEN_MAX
        };
        if token.is_none_or(is_valid) {
            return Ok(token);
        }
        let at = Cow::from("params._meta.progressToken");
        Err(ParamsError::WrongType { at, expected: "a short string or a number" })
    }

    /// Returns the lowest level of log messages that a modern client wants with this request.
    pub fn log_level(&self) -> Result<Option<LogLevel>, ParamsError> {
        let Some(level) = self.meta(meta::LOG_LEVEL) else { return Ok(None) };
        let level = text_of(level).and_then(|level| LogLevel::parse(&level));
        level.map(Some).ok_or_else(|| ParamsError::WrongType {
            at: format!("params._meta[\"{}\"]", meta::LOG_LEVEL).into(),
            expected: "a log level, such as \"info\"",
        })
    }

    /// Returns the trace that `_meta` names; `None` if it names none. An invalid one is no trace.
    pub fn trace(&self) -> Option<Option<Trace>> {
        let text = |name| self.meta(name).map(|value| text_of(value).unwrap_or_default());
        let parent = text(meta::TRACEPARENT)?;
        Some(Trace::parse(&parent, text(meta::TRACESTATE).as_deref()))
    }

    /// Writes all members but `_meta` and `except`: `,"name":value` each.
    pub fn others(&self, except: &[&str]) -> String {
        let passed = |name: &str| name != "_meta" && !except.contains(&name);
        write_members(self.members.as_ref(), passed)
    }

    /// Writes the members of `_meta` that are passed on to the server: `,"name":value` each.
    pub fn other_meta(&self) -> String {
        write_members(self.meta.as_ref(), |name| !KNOWN_META.contains(&name))
    }
}

/// Returns the text of a JSON string.
pub fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let quoted = value.get();
    let plain = quoted.strip_prefix('"')?.strip_suffix('"')?;
    // A string without escapes can be borrowed.
    if !plain.contains('\\') {
        return Some(Cow::Borrowed(plain));
    }
    serde_json::from_str(quoted).ok().map(Cow::Owned)
}

fn read<'a>(
    at: &'static str,
    object: &'a RawValue,
    known: &[&str],
) -> Result<Members<'a>, ParamsError> {
    let members =
        Members::of_caller(object.get()).map_err(|error| ParamsError::Members { at, error })?;
    match members.case_variant(known) {
        Some(name) => Err(ParamsError::CaseVariant { at, name: name.chars().take(64).collect() }),
        None => Ok(members),
    }
}

fn write_members(members: Option<&Members<'_>>, passed: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    for (name, value) in members.into_iter().flat_map(Members::iter) {
        if passed(name) {
            out.push(',');
            write_name(&mut out, name);
            out.push(':');
            out.push_str(value.get());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    fn error(json: &str) -> String {
        Params::parse(Some(raw(json))).unwrap_err().to_string()
    }

    #[test]
    fn params_that_two_parsers_could_read_differently_are_refused() {
        for json in [
            r#"{"name":"a","name":"b"}"#,
            r#"{"name":"a","n\u0061me":"b"}"#,
            r#"{"name":"a","Name":"b"}"#,
            r#"{"ARGUMENTS":{}}"#,
            r#"{"_Meta":{}}"#,
            r#"{"_meta":{"progressToken":1,"progressToken":2}}"#,
            r#"{"_meta":{"progresstoken":1}}"#,
            r#"{"_meta":{"IO.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#,
            r#"[]"#,
            r#"{"_meta":[]}"#,
        ] {
            assert!(Params::parse(Some(raw(json))).is_err(), "{json} was accepted");
        }
        assert!(error(r#"{"Name":"b"}"#).contains("\"Name\""));
    }

    #[test]
    fn unknown_members_are_passed_on_and_the_gateways_own_are_not() {
        let json = r#"{"name":"t","x":{"y": 1.0},"_meta":{"progressToken":7,"a/b":"c",
           "trunkline/timeoutMs":1,"io.modelcontextprotocol/clientCapabilities":{},
           "baggage":"a=1","traceparent":"00"}}"#;
        let params = Params::parse(Some(raw(json))).unwrap();
        assert_eq!(params.others(&["name"]), r#","x":{"y": 1.0}"#);
        assert_eq!(params.other_meta(), r#","a/b":"c""#);
        assert_eq!(params.trace(), Some(None));
        assert_eq!(params.progress_token().unwrap().unwrap().get(), "7");
        assert_eq!(params.text("name").unwrap(), "t");
    }

    #[test]
    fn only_strings_have_text() {
        assert_eq!(text_of(raw(r#""a\n\"é""#)).unwrap(), "a\n\"é");
        assert_eq!(text_of(raw(r#""""#)).unwrap(), "");
        for other in ["1", "null", "[]", r#""\ud800""#] {
            assert!(text_of(raw(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn a_missing_or_wrong_member_is_named() {
        let params = Params::parse(Some(raw(r#"{"uri":7,"_meta":{"progressToken":[]}}"#))).unwrap();
        assert_eq!(params.text("name").unwrap_err().to_string(), "`params.name` is missing");
        assert_eq!(params.text("uri").unwrap_err().to_string(), "`params.uri` must be a string");
        assert!(params.progress_token().is_err());
        assert!(Params::parse(None).unwrap().get("name").is_none());
    }
}
