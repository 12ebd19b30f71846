//! The headers that say how a call is to be made, kept and answered.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::call_events::EVENT_STREAM;
use crate::calls::{IdempotencyKey, InvalidKey};
use crate::events::CallTags;
use crate::gateway::CallError;
use crate::http::headers::{
    CALLBACK, IDEMPOTENCY_KEY, LABELS, PREFER, REQUEST_ID, accepts, tool_errors_fail,
};

const LABELS_MAX: usize = 8;
const LABEL_LEN_MAX: usize = 64;
/// A longer request id is neither kept nor given back.
const REQUEST_ID_LEN_MAX: usize = 128;
/// The longest wait for an asynchronous call, in seconds.
pub(super) const WAIT_MAX: u64 = 60;

#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) key: Option<IdempotencyKey>,
    pub(super) prefer: Prefer,
    /// Answer a tool's own failure with 422.
    pub(super) tool_errors_fail: bool,
    /// The URL that is to be told of the end.
    pub(super) callback: Option<String>,
    /// Answer with events. An asynchronous call is answered at once anyway.
    pub(super) events: bool,
}

/// The preferences that count (RFC 7240). All others are ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Prefer {
    pub(super) respond_async: bool,
    pub(super) wait: Option<Duration>,
}

impl Asked {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, CallError> {
        let prefer = Prefer::read(headers);
        Ok(Self {
            key: key(headers)?,
            callback: callback(headers, &prefer)?,
            events: !prefer.respond_async && asks_for_events(headers),
            prefer,
            tool_errors_fail: tool_errors_fail(headers)?,
        })
    }

    /// Returns whether the call is to have a record.
    pub(super) fn is_kept(&self) -> bool {
        self.key.is_some() || self.prefer.respond_async
    }
}

/// Returns whether the caller wants events. MCP clients accept both kinds: the plain answer is
/// enough for them, and cheaper.
fn asks_for_events(headers: &HeaderMap) -> bool {
    accepts(headers, EVENT_STREAM) && !accepts(headers, "application/json")
}

/// Reads the caller's own names for a call.
pub(crate) fn tags(headers: &HeaderMap) -> Result<CallTags, CallError> {
    let request_id = request_id(headers).map(str::to_owned);
    Ok(CallTags { request_id, labels: labels(headers)? })
}

/// Gives the request's own id back, on every response of the REST API.
pub(crate) fn give_back_request_id<B>(request: Option<HeaderValue>, response: &mut Response<B>) {
    if let Some(id) = request {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
}

/// Returns the request's own id, as a header.
pub(crate) fn request_id_header(headers: &HeaderMap) -> Option<HeaderValue> {
    request_id(headers)?;
    headers.get(&REQUEST_ID).cloned()
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(&REQUEST_ID)?.to_str().ok()?;
    let is_plain = id.bytes().all(|byte| byte.is_ascii_graphic());
    (is_plain && (1..=REQUEST_ID_LEN_MAX).contains(&id.len())).then_some(id)
}

/// Returns the one value of a header. Several are ambiguous.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, CallError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(value), None) => Ok(Some(value)),
        _ => Err(CallError::InvalidRequest(format!("send `{name}` once, in ASCII"))),
    }
}

fn key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, CallError> {
    let invalid = |error: InvalidKey| CallError::InvalidRequest(error.to_string());
    one(headers, &IDEMPOTENCY_KEY)?.map(IdempotencyKey::parse).transpose().map_err(invalid)
}

fn callback(headers: &HeaderMap, prefer: &Prefer) -> Result<Option<String>, CallError> {
    let url = one(headers, &CALLBACK)?;
    if url.is_some() && !prefer.respond_async {
        let message = "`Trunkline-Callback` is for asynchronous calls: send \
                       `Prefer: respond-async`, too";
        return Err(CallError::InvalidRequest(message.to_owned()));
    }
    Ok(url.map(str::to_owned))
}

fn labels(headers: &HeaderMap) -> Result<Vec<String>, CallError> {
    let Some(value) = one(headers, &LABELS)? else { return Ok(vec![]) };
    let labels: Vec<_> = value.split(',').map(|label| label.trim().to_owned()).collect();
    let is_valid = |label: &String| {
        (1..=LABEL_LEN_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if labels.len() <= LABELS_MAX && labels.iter().all(is_valid) {
        return Ok(labels);
    }
    Err(CallError::InvalidRequest(format!(
        "`Trunkline-Labels` must be at most {LABELS_MAX} labels, such as `run=7,task=a`, each of \
         1 to {LABEL_LEN_MAX} visible ASCII characters"
    )))
}

impl Prefer {
    fn read(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        let values = headers.get_all(&PREFER).iter().filter_map(|value| value.to_str().ok());
        for preference in values.flat_map(|value| value.split(',')) {
            let preference = preference.split(';').next().unwrap_or_default().trim();
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            match name.trim().to_ascii_lowercase().as_str() {
                "respond-async" => prefer.respond_async = true,
                "wait" => {
                    let seconds = value.trim().parse::<u64>().ok();
                    prefer.wait = seconds.map(|it| Duration::from_secs(it.min(WAIT_MAX)));
                }
                _ => {}
            }
        }
        prefer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        headers.iter().map(header).collect()
    }

    fn asked(sent: &[(&'static str, &'static str)]) -> Result<Asked, CallError> {
        let sent = headers(sent);
        tags(&sent)?;
        Asked::read(&sent)
    }

    #[test]
    fn preferences_are_read_wherever_they_stand() {
        let prefer = |headers: &[_]| asked(headers).unwrap().prefer;
        let (respond_async, wait) = (true, Some(Duration::from_secs(5)));
        assert_eq!(prefer(&[("prefer", "respond-async, wait=5")]), Prefer { respond_async, wait });
        assert_eq!(
            prefer(&[("prefer", "x; y=1, Wait = 5"), ("prefer", "Respond-Async")]),
            Prefer { respond_async, wait }
        );
        assert_eq!(prefer(&[("prefer", "wait=x, return=minimal")]), Prefer::default());
        assert_eq!(prefer(&[("prefer", "wait=600")]).wait, Some(Duration::from_secs(WAIT_MAX)));
    }

    #[test]
    fn wrong_headers_are_refused_and_a_wrong_request_id_is_ignored() {
        for bad in [
            ("idempotency-key", "a b"),
            ("trunkline-tool-errors", "pass"),
            ("trunkline-callback", "https://hooks.example/"),
            ("trunkline-labels", "a,,b"),
            ("trunkline-labels", "1,2,3,4,5,6,7,8,9"),
        ] {
            assert!(matches!(asked(&[bad]), Err(CallError::InvalidRequest(_))), "{bad:?}");
        }
        let twice = [("idempotency-key", "a"), ("idempotency-key", "a")];
        let read =
            tags(&headers(&[("x-request-id", "a b"), ("trunkline-labels", "run=7, task=a")]));
        let CallTags { request_id, labels } = read.unwrap();
        assert_eq!(request_id, None);
        assert_eq!(labels, ["run=7", "task=a"]);
        let mut headers = HeaderMap::new();
        for (name, value) in twice {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert!(Asked::read(&headers).is_err());
    }
}
