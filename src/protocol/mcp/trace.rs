//! A caller's place in a trace (W3C Trace Context), checked before it is passed on.
//!
//! Invalid values are dropped without an error, as the standard asks: a broken trace must not break
//! a call. `baggage` is never passed on: clients add it by themselves, and a server may be
//! anybody's.

use std::fmt::{self, Write};
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::meta::{TRACEPARENT, TRACESTATE};

/// `00-` trace id `-` parent id `-` flags: the length of version 00, and the beginning of later
/// ones.
const TRACEPARENT_LEN: usize = 55;
/// The standard allows dropping a longer `tracestate`. Later versions of `traceparent` get as much.
const LEN_MAX: usize = 512;

/// Names one span of a trace, as `traceparent` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// Not zero.
    pub trace_id: u128,
    pub span_id: SpanId,
    flags: u8,
}

pub type SpanId = NonZeroU64;

/// A span, and what tracing systems have added to its trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Headers", into = "Headers")]
pub struct Trace {
    pub span: SpanContext,
    /// The entries belong to tracing systems and are not parsed.
    pub state: Option<Box<str>>,
}

/// A trace as its headers.
#[derive(Serialize, Deserialize)]
struct Headers {
    traceparent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

impl SpanContext {
    const SAMPLED: u8 = 1;
    /// Says that the trace id is random.
    const RANDOM: u8 = 2;

    /// Returns the first span of a new trace, sampled.
    pub fn new_root(trace_id: u128) -> Self {
        Self { trace_id, span_id: new_span_id(), flags: Self::SAMPLED | Self::RANDOM }
    }

    /// Returns a new sampled span of the same trace.
    pub fn new_child(self) -> Self {
        self.with_span(new_span_id())
    }

    /// Returns a sampled span of the same trace.
    pub fn with_span(self, span_id: SpanId) -> Self {
        Self { span_id, flags: self.flags | Self::SAMPLED, ..self }
    }

    pub fn is_sampled(self) -> bool {
        self.flags & Self::SAMPLED != 0
    }

    pub fn flags(self) -> u8 {
        self.flags
    }

    /// Reads the value of `traceparent`. A later version is read, and passed on, as version 00.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim_matches([' ', '\t']);
        let (known, rest) = value.split_at_checked(TRACEPARENT_LEN)?;
        let mut fields = known.split('-');
        let mut field = |len| fields.next().filter(|field| field.len() == len && is_hex(field));
        let (version, trace_id, span_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_rest_fine = match version {
            "ff" => false,
            "00" => rest.is_empty(),
            _ => (rest.is_empty() || rest.starts_with('-')) && value.len() <= LEN_MAX,
        };
        let trace_id = u128::from_str_radix(trace_id, 16).ok()?;
        let span_id = NonZeroU64::new(u64::from_str_radix(span_id, 16).ok()?)?;
        let flags = u8::from_str_radix(flags, 16).ok()? & (Self::SAMPLED | Self::RANDOM);
        (is_rest_fine && trace_id != 0).then_some(Self { trace_id, span_id, flags })
    }
}

/// Returns a random id for a trace.
pub fn new_trace_id() -> u128 {
    rand::random::<u128>().max(1)
}

/// Returns a random id for a span.
pub fn new_span_id() -> SpanId {
    NonZeroU64::new(rand::random()).unwrap_or(NonZeroU64::MIN)
}

/// Writes the value of `traceparent`.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id, flags } = self;
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

impl Trace {
    /// Reads the values of both headers. Without a valid parent there is no trace.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let span = SpanContext::parse(parent)?;
        let state = state.map(|state| state.trim_matches([' ', '\t'])).filter(|it| is_state(it));
        Some(Self { span, state: state.map(Into::into) })
    }

    /// Returns the trace as the server of one attempt is told of it.
    pub fn with_span(&self, span: SpanContext) -> Self {
        Self { span, state: self.state.clone() }
    }

    /// Writes the trace as members of `_meta`, `,"name":value` each.
    pub(super) fn write_members(&self, out: &mut String) {
        let _ = write!(out, ",\"{TRACEPARENT}\":\"{}\"", self.span);
        if let Some(state) = &self.state {
            let _ = write!(out, ",\"{TRACESTATE}\":{}", serde_json::json!(state));
        }
    }

    /// Returns the trace as headers.
    pub fn headers(&self) -> impl Iterator<Item = (String, String)> {
        let parent = (TRACEPARENT.to_owned(), self.span.to_string());
        let state = self.state.iter().map(|state| (TRACESTATE.to_owned(), state.to_string()));
        [parent].into_iter().chain(state)
    }
}

impl TryFrom<Headers> for Trace {
    type Error = &'static str;

    fn try_from(headers: Headers) -> Result<Self, Self::Error> {
        let Headers { traceparent, tracestate } = headers;
        Self::parse(&traceparent, tracestate.as_deref()).ok_or("no valid `traceparent`")
    }
}

impl From<Trace> for Headers {
    fn from(trace: Trace) -> Self {
        let (traceparent, tracestate) = (trace.span.to_string(), trace.state.map(String::from));
        Self { traceparent, tracestate }
    }
}

fn is_state(value: &str) -> bool {
    !value.is_empty()
        && value.len() <= LEN_MAX
        && value.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
}

fn is_hex(field: &str) -> bool {
    field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parsed(value: &str) -> Option<String> {
        SpanContext::parse(value).map(|span| span.to_string())
    }

    #[test]
    fn the_examples_of_the_standard_pass() {
        for value in [
            EXAMPLE,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03",
        ] {
            assert_eq!(parsed(value).as_deref(), Some(value));
            assert_eq!(parsed(&format!(" {value}\t")).as_deref(), Some(value));
        }
        assert!(SpanContext::parse(EXAMPLE).unwrap().is_sampled());
    }

    #[test]
    fn later_versions_and_unknown_flags_are_passed_on_as_version_00() {
        for (value, passed_on) in [
            (format!("01{}", &EXAMPLE[2..]), EXAMPLE),
            (format!("cc{}-what-the-future-will-be-like", &EXAMPLE[2..]), EXAMPLE),
            (format!("cc{}-", &EXAMPLE[2..]), EXAMPLE),
            (format!("{}f9", &EXAMPLE[..53]), EXAMPLE),
        ] {
            assert_eq!(parsed(&value).as_deref(), Some(passed_on), "{value}");
        }
    }

    #[test]
    fn invalid_values_are_dropped() {
        for value in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473.-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-é",
        ] {
            assert_eq!(parsed(value), None, "{value}");
        }
    }

    #[test]
    fn a_trace_is_written_as_members_as_headers_and_for_the_store() {
        let trace = Trace::parse(EXAMPLE, Some(" a=\"\\ ")).unwrap();
        let mut members = String::new();
        trace.write_members(&mut members);
        assert_eq!(members, format!(r#","traceparent":"{EXAMPLE}","tracestate":"a=\"\\""#));
        let headers: Vec<_> = trace.headers().map(|(_, value)| value).collect();
        assert_eq!(headers, [EXAMPLE, "a=\"\\"]);
        let json = serde_json::to_string(&trace).unwrap();
        assert_eq!(serde_json::from_str::<Trace>(&json).unwrap(), trace);
        assert!(serde_json::from_str::<Trace>(r#"{"traceparent":"00"}"#).is_err());
    }

    #[test]
    fn a_child_is_another_span_of_the_same_trace() {
        let parent = SpanContext::parse(&format!("{}0", &EXAMPLE[..54])).unwrap();
        let child = parent.new_child();
        assert_eq!(child.trace_id, parent.trace_id);
        assert!(child.span_id != parent.span_id && child.is_sampled() && !parent.is_sampled());
    }

    #[test]
    fn states_that_may_not_be_passed_on_are_dropped() {
        let state = |state: &str| Trace::parse(EXAMPLE, Some(state)).unwrap().state;
        assert!(state(&"a".repeat(LEN_MAX)).is_some());
        for value in ["", " ", "a=é", "a=\n", "a=\u{7f}", &"a".repeat(LEN_MAX + 1)] {
            assert_eq!(state(value), None, "{value:?}");
        }
        assert_eq!(Trace::parse("00", Some("a=1")), None);
    }

    proptest! {
        /// Members are JSON, whatever a caller sends.
        #[test]
        fn members_are_json(rest in ".{0,8}", version in "[0-9a-f]{2}", state in ".{0,40}") {
            let value = format!("{version}{}{rest}", &EXAMPLE[2..]);
            if let Some(trace) = Trace::parse(&value, Some(&state)) {
                let mut members = String::new();
                trace.write_members(&mut members);
                let json = format!("{{{}}}", &members[1..]);
                let json: serde_json::Value = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(&json["traceparent"], EXAMPLE);
                if trace.state.is_some() {
                    let state = state.trim_matches([' ', '\t']);
                    prop_assert_eq!(json["tracestate"].as_str(), Some(state));
                }
            }
        }
    }
}
