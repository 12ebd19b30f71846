//! The `params` of a client's request: read once, and what goes on to a server is rebuilt from what was read.
//!
//! A gateway that checks one member while the server obeys another can be led past its own checks. So a name
//! that appears twice is refused, and so is one that a reader without regard for case would take for a known
//! one. Members that are not known are passed on.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{LogLevel, meta};
use crate::protocol::jsonrpc::members::{Members, MembersError};
use crate::protocol::jsonrpc::rewrite::write_name;

/// What methods know as members of `params`.
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
    "uri",
];

/// What the protocol and the gateway know as members of `_meta`; first those of [`OWN_META`].
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

/// Those of them that are between the gateway and its peer on either side, and written anew for each.
const OWN_META: &[&str] = KNOWN_META.split_at(7).0;

/// The longest token that is echoed with every notification.
const TOKEN_LEN_MAX: usize = 1024;

/// The `params` of one request.
#[derive(Debug)]
pub struct Params<'a> {
    members: Option<Members<'a>>,
    meta: Option<Members<'a>>,
}

/// What is wrong with them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// Not an object, or ambiguous.
    #[error("`{at}`: {error}")]
    Members {
        /// Where.
        at: &'static str,
        /// What.
        error: MembersError,
    },
    /// Easily taken for another.
    #[error(
        "`{at}` has a member {name:?}: names must be written exactly as the protocol spells them"
    )]
    Twin {
        /// Where.
        at: &'static str,
        /// As it was written.
        name: String,
    },
    /// Not there.
    #[error("`params.{0}` is missing")]
    Missing(&'static str),
    /// There, but something else.
    #[error("`{at}` must be {expected}")]
    WrongType {
        /// Where.
        at: Cow<'static, str>,
        /// What it should be.
        expected: &'static str,
    },
}

impl<'a> Params<'a> {
    /// Reads the member of a request's envelope.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, ParamsError> {
        let members = params.map(|params| read("params", params, KNOWN)).transpose()?;
        let meta = members.as_ref().and_then(|members| members.get("_meta"));
        let meta = meta.map(|meta| read("params._meta", meta, KNOWN_META)).transpose()?;
        Ok(Self { members, meta })
    }

    /// One member.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.members.as_ref()?.get(name)
    }

    /// One that must be there and be a text.
    pub fn text(&self, name: &'static str) -> Result<Cow<'a, str>, ParamsError> {
        let value = self.get(name).ok_or(ParamsError::Missing(name))?;
        text_of(value).ok_or_else(|| ParamsError::WrongType {
            at: format!("params.{name}").into(),
            expected: "a string",
        })
    }

    /// One member of `_meta`.
    pub fn meta(&self, name: &str) -> Option<&'a RawValue> {
        self.meta.as_ref()?.get(name)
    }

    /// The token under which the client wants to hear of progress.
    pub fn progress_token(&self) -> Result<Option<&'a RawValue>, ParamsError> {
        match self.meta(meta::PROGRESS_TOKEN) {
            Some(token)
                if token.get().len() > TOKEN_LEN_MAX
                    || !matches!(token.get().as_bytes()[0], b'"' | b'-' | b'0'..=b'9') =>
            {
                let at = Cow::from("params._meta.progressToken");
                Err(ParamsError::WrongType { at, expected: "a short string or a number" })
            }
            token => Ok(token),
        }
    }

    /// How grave the log lines must be that a modern client wants with this request.
    pub fn log_level(&self) -> Result<Option<LogLevel>, ParamsError> {
        let Some(level) = self.meta(meta::LOG_LEVEL) else { return Ok(None) };
        match text_of(level).and_then(|level| LogLevel::parse(&level)) {
            Some(level) => Ok(Some(level)),
            None => Err(ParamsError::WrongType {
                at: format!("params._meta[\"{}\"]", meta::LOG_LEVEL).into(),
                expected: "a log level, such as \"info\"",
            }),
        }
    }

    /// All members but `_meta` and `except`, to be passed on: `,"name":value` each.
    pub fn others(&self, except: &[&str]) -> String {
        let passed = |name: &str| name != "_meta" && !except.contains(&name);
        write_members(self.members.as_ref(), passed)
    }

    /// The members of `_meta` that go on to whoever answers: `,"name":value` each.
    pub fn other_meta(&self) -> String {
        write_members(self.meta.as_ref(), |name| !OWN_META.contains(&name))
    }
}

/// The text of a JSON string.
pub fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let quoted = value.get();
    let plain = quoted.strip_prefix('"')?.strip_suffix('"')?;
    // Without escapes it is there as it is.
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
        Members::parse(object.get()).map_err(|error| ParamsError::Members { at, error })?;
    match members.folded_twin(known) {
        Some(name) => Err(ParamsError::Twin { at, name: name.chars().take(64).collect() }),
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
    fn what_two_readers_could_see_differently_is_refused() {
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
    fn what_is_not_known_goes_on_and_what_is_ours_does_not() {
        let json = r#"{"name":"t","x":{"y": 1.0},"_meta":{"progressToken":7,"a/b":"c","trunkline/timeoutMs":1,
            "io.modelcontextprotocol/clientCapabilities":{},"traceparent":"00"}}"#;
        let params = Params::parse(Some(raw(json))).unwrap();
        assert_eq!(params.others(&["name"]), r#","x":{"y": 1.0}"#);
        assert_eq!(params.other_meta(), r#","a/b":"c","traceparent":"00""#);
        assert_eq!(params.progress_token().unwrap().unwrap().get(), "7");
        assert_eq!(params.text("name").unwrap(), "t");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let params = Params::parse(Some(raw(r#"{"uri":7,"_meta":{"progressToken":[]}}"#))).unwrap();
        assert_eq!(params.text("name").unwrap_err().to_string(), "`params.name` is missing");
        assert_eq!(params.text("uri").unwrap_err().to_string(), "`params.uri` must be a string");
        assert!(params.progress_token().is_err());
        assert!(Params::parse(None).unwrap().get("name").is_none());
    }
}
