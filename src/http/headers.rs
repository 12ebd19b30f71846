//! The headers that several handlers share: their names, their meaning, and how values are made.

use std::time::Duration;

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

use crate::backend::queue::FairnessKey;
use crate::gateway::{CallError, check_timeout};
use crate::protocol::mcp::meta;
use crate::protocol::mcp::trace::Trace;
use crate::registry::Server;
use crate::tenants::limits::RateStatus;

pub(crate) static ATTEMPTS: HeaderName = HeaderName::from_static("trunkline-attempts");
pub(crate) static CALLBACK: HeaderName = HeaderName::from_static("trunkline-callback");
pub(crate) static CALL_ID: HeaderName = HeaderName::from_static("trunkline-call-id");
pub(crate) static FAIRNESS_KEY: HeaderName = HeaderName::from_static("trunkline-fairness-key");
pub(crate) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) static LABELS: HeaderName = HeaderName::from_static("trunkline-labels");
pub(crate) static OUTCOME: HeaderName = HeaderName::from_static("trunkline-outcome");
pub(crate) static PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) static PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
pub(crate) static PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) static REPLAYED: HeaderName = HeaderName::from_static("trunkline-replayed");
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) static SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
pub(crate) static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) static TIMEOUT_MS: HeaderName = HeaderName::from_static("trunkline-timeout-ms");
pub(crate) static TOOL_ERRORS: HeaderName = HeaderName::from_static("trunkline-tool-errors");
pub(crate) static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A day: no server has a longer `max_deadline`.
pub(crate) const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

const FAIRNESS_KEY_LEN_MAX: usize = 64;

/// Refuses an `Idempotency-Key` where calls are not kept.
pub(crate) fn refuse_key(headers: &HeaderMap) -> Result<(), CallError> {
    if headers.contains_key(&IDEMPOTENCY_KEY) {
        let message = "`Idempotency-Key` is for calls and batches over REST: this request would \
                       run twice if it were sent twice";
        return Err(CallError::InvalidRequest(message.to_owned()));
    }
    Ok(())
}

/// Reads the caller's own timeout from `Trunkline-Timeout-Ms`.
pub(crate) fn asked_timeout(headers: &HeaderMap) -> Result<Option<Duration>, CallError> {
    let Some(value) = headers.get(&TIMEOUT_MS) else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(ms @ 1..=TIMEOUT_MS_MAX) => Ok(Some(Duration::from_millis(ms))),
        _ => Err(CallError::InvalidRequest(format!(
            "`Trunkline-Timeout-Ms` must be a whole number of milliseconds from 1 to \
             {TIMEOUT_MS_MAX}"
        ))),
    }
}

/// Reads the caller's own timeout for a call of this server.
pub(crate) fn asked_timeout_of(
    server: &Server,
    headers: &HeaderMap,
) -> Result<Option<Duration>, CallError> {
    let asked = asked_timeout(headers)?;
    check_timeout(server, "Trunkline-Timeout-Ms", asked)?;
    Ok(asked)
}

/// Returns whether the caller asks for tools' own failures to be answered with 422.
pub(crate) fn tool_errors_fail(headers: &HeaderMap) -> Result<bool, CallError> {
    match headers.get(&TOOL_ERRORS).map(HeaderValue::as_bytes) {
        None => Ok(false),
        Some(b"fail") => Ok(true),
        Some(_) => {
            let message = "`Trunkline-Tool-Errors` may only be `fail`; without it a tool's own \
                           failure is a result with status 200";
            Err(CallError::InvalidRequest(message.to_owned()))
        }
    }
}

/// Returns whether the caller asks for this media type by name.
pub(crate) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    accepted_types(headers).any(|name| name.eq_ignore_ascii_case(media_type.as_bytes()))
}

/// Returns the media types and ranges that the caller accepts, without their parameters.
pub(crate) fn accepted_types(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(ACCEPT).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',').map(media_type))
}

/// Returns a media type without its parameters.
pub(crate) fn media_type(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Reads which of its tenant's other calls the call takes turns with.
pub(crate) fn fairness_key(headers: &HeaderMap) -> Result<FairnessKey, CallError> {
    let Some(value) = headers.get(&FAIRNESS_KEY) else { return Ok(FairnessKey::default()) };
    match value.to_str() {
        Ok(name) if (1..=FAIRNESS_KEY_LEN_MAX).contains(&name.len()) => {
            Ok(FairnessKey::named(name))
        }
        _ => Err(CallError::InvalidRequest(format!(
            "`Trunkline-Fairness-Key` must be 1 to {FAIRNESS_KEY_LEN_MAX} visible ASCII characters"
        ))),
    }
}

/// Reads the request's trace (W3C Trace Context).
pub(super) fn trace_of(headers: &HeaderMap) -> Option<Trace> {
    let all = |name| headers.get_all(name).iter().map(|value| value.to_str().ok());
    // Several parents are ambiguous; the state may be a list on several lines.
    let mut parents = all(meta::TRACEPARENT);
    let (Some(Some(parent)), None) = (parents.next(), parents.next()) else { return None };
    let state: Option<Vec<&str>> = all(meta::TRACESTATE).collect();
    Trace::parse(parent, state.map(|state| state.join(",")).as_deref())
}

/// Makes a value of text that the gateway wrote itself, without copying.
pub(crate) fn text_value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("made of visible ASCII")
}

/// Adds the `RateLimit` headers, if the tenant has rates.
pub(crate) fn add_rate_status(headers: &mut HeaderMap, rate_status: &RateStatus) {
    if rate_status.is_empty() {
        return;
    }
    headers.insert(RATE_LIMIT_POLICY.clone(), text_value(rate_status.policy()));
    headers.insert(RATE_LIMIT.clone(), text_value(rate_status.remaining()));
}
