//! The header names that several handlers share, and how their values are made.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

use crate::common::ids::CallId;
use crate::tenants::limits::RateStatus;

pub(crate) static ATTEMPTS: HeaderName = HeaderName::from_static("trunkline-attempts");
pub(crate) static CALL_ID: HeaderName = HeaderName::from_static("trunkline-call-id");
pub(crate) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) static OUTCOME: HeaderName = HeaderName::from_static("trunkline-outcome");
pub(crate) static PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) static SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
pub(crate) static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) static TIMEOUT_MS: HeaderName = HeaderName::from_static("trunkline-timeout-ms");
pub(crate) static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

pub(crate) fn call_id_value(id: CallId) -> HeaderValue {
    text_value(id.to_string())
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
