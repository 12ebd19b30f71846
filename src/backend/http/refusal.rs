//! Interprets a response that is no success: what it says of the request, the session, the server.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::HttpEndpoint;
use super::refusal_probe;
use super::stream::{deliver, read_whole};
use crate::backend::connection::RequestError;
use crate::backend::connection::incoming::ExpectedAnswers;
use crate::oauth::challenge::Challenge;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{Message, decode};
use crate::protocol::mcp::{HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, method};

/// Begins the reason of a refused access token.
pub(super) const TOKEN_REFUSED: &str = "it refuses the gateway's access token";
const BODY_LEN_MAX: usize = 64 * 1024;
/// Time for the body to arrive. The status alone is enough to fail the call.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Error codes that SDKs use to refuse a session.
const BAD_REQUEST: i64 = -32000;
const NO_SUCH_SESSION: i64 = -32001;
/// The longest `Retry-After` that callers get.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// The longest pause that one refusal causes, whatever `Retry-After` says. If the server still
/// refuses, the next call finds out.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The pause after a 429 without `Retry-After`.
const PAUSE: Duration = Duration::from_secs(1);

/// Handles a status that is no success. A JSON-RPC error in the body is an answer like any other,
/// unless the server asks for a pause. The pause of the call's tenant then starts at once, before
/// the body is read and the call's slot is free.
pub(super) async fn handle_refusal(
    endpoint: &HttpEndpoint,
    id: u64,
    mut response: Response,
    method: &str,
    is_in_session: bool,
) -> Result<(), RequestError> {
    // A status is a sign of life. Otherwise an idle server that only refuses would be pinged
    // forever.
    endpoint.connection.liveness.note_output();
    if let Some(refused) = token_refusal(endpoint, &response, method) {
        return Err(refused);
    }
    let status = response.status().as_u16();
    let retry_after = match (status, retry_after(response.headers())) {
        (429, None) => Some(PAUSE),
        (_, said) => said,
    };
    if let (429 | 503, Some(retry_after)) = (status, retry_after) {
        if let Some(pause) = endpoint.connection.in_flight.tenant_pause(id) {
            pause.pause_until(Instant::now() + retry_after.min(PAUSE_MAX));
        }
        return Err(RequestError::Http { status, retry_after: Some(retry_after) });
    }
    let body = timeout(BODY_TIMEOUT, read_whole(&mut response, BODY_LEN_MAX)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let error_code = error_of(&body, id);
    if is_in_session {
        let is_gone = match session_after(status, &body, error_code.is_some()) {
            UpstreamSession::Known => false,
            // The tool list existed when the session began, so a 404 for it means the session.
            UpstreamSession::InDoubt => method == method::TOOLS_LIST,
            UpstreamSession::Gone => true,
        };
        if is_gone {
            return Err(endpoint.retire_session());
        }
    }
    if let Some(code) = error_code {
        if code == HEADER_MISMATCH {
            // The tool wants other headers than when it was listed.
            endpoint.connection.note_tools_changed();
        }
        // A server that rejects the agreed version or a valid request may have been replaced.
        if refusal_probe::is_relevant(endpoint, method) {
            match code {
                UNSUPPORTED_PROTOCOL_VERSION => {
                    if let Some(retired) = refusal_probe::wait(endpoint, id).await {
                        return Err(retired);
                    }
                }
                _ if status == 400 => refusal_probe::trigger(endpoint),
                _ => {}
            }
        }
        deliver(endpoint, body, ExpectedAnswers::To(id)).await;
        return Ok(());
    }
    Err(RequestError::Http { status, retry_after })
}

/// Returns the failure of a request of the gateway's own whose access token is refused. Names the
/// error code of the refusal.
fn token_refusal(
    endpoint: &HttpEndpoint,
    response: &Response,
    method: &str,
) -> Option<RequestError> {
    let is_own = matches!(method, method::DISCOVER | method::INITIALIZE | method::TOOLS_LIST);
    if !is_own || !endpoint.client.has_tokens() {
        return None;
    }
    let challenge = Challenge::read(response.status(), response.headers())?;
    let reason = format!("{TOKEN_REFUSED} (`{}`)", challenge.code()?);
    let detail = match challenge.scopes.is_empty() {
        true => reason.clone(),
        false => format!("{reason}: it wants the scopes `{}`", challenge.scopes.join(" ")),
    };
    Some(RequestError::Unreached { reason: reason.into(), detail })
}

/// Says what a refusal means for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpstreamSession {
    Known,
    /// Either the session is gone, or the requested thing does not exist.
    InDoubt,
    Gone,
}

/// Decides whether the server has forgotten the session.
///
/// The specification asks for 404, but a tool or a proxy may say 404 too. Many servers say 400 with
/// an error, and some make that error the answer to the request. An answer must have the exact
/// words of the SDKs: a tool with sessions of its own may fail with others, after it has run.
fn session_after(status: u16, body: &[u8], is_answer: bool) -> UpstreamSession {
    // The other members of an answer may be missing.
    #[derive(Deserialize)]
    struct Refusal {
        error: ErrorObject,
    }
    let refusal = serde_json::from_slice::<Refusal>(body).map(|refusal| refusal.error);
    let (code, words) =
        refusal.map_or((0, String::new()), |it| (it.code, it.message.to_lowercase()));
    let is_about_session = words.contains("session");
    let is_gone = match (status, code) {
        (404, _) if !is_answer && !is_about_session => return UpstreamSession::InDoubt,
        (404, _) if !is_answer => true,
        (400, BAD_REQUEST | NO_SUCH_SESSION) if !is_answer => is_about_session,
        (400 | 404, BAD_REQUEST) => is_about_session && words.starts_with("bad request:"),
        (404, NO_SUCH_SESSION) => words == "session not found",
        _ => false,
    };
    if is_gone { UpstreamSession::Gone } else { UpstreamSession::Known }
}

/// Returns the code of the JSON-RPC error that answers `id`.
fn error_of(body: &[u8], id: u64) -> Option<i64> {
    match decode(body) {
        Ok(Message::Response { id: answered, outcome: Err(error) })
            if answered.get().parse() == Ok(id) =>
        {
            Some(serde_json::from_str::<ErrorObject>(error.get()).ok()?.code)
        }
        _ => None,
    }
}

/// Parses `Retry-After`, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
            let wait = date.duration_since(jiff::Timestamp::now());
            Duration::try_from(wait).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::connection::{CallPermits, NewCall};
    use crate::backend::queue::{Queue, QueueOptions};
    use crate::common::ids::TenantId;

    fn wait(value: &str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
        retry_after(&headers)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_never_for_ever() {
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
        let later =
            jiff::fmt::rfc2822::to_string(&later.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
        assert!(wait(&later).unwrap() > Duration::from_secs(50), "{later}");
        assert_eq!((wait("soon"), wait("-1")), (None, None));
    }

    /// Has a call refused so. Returns the failure, and how long its tenant then waits for a slot.
    async fn refused(status: u16, asked: Option<&str>, body: &str) -> (RequestError, Duration) {
        let endpoint = HttpEndpoint::unreachable();
        let (queue, tenant) = (Queue::new(8, QueueOptions::default()), TenantId::gateway());
        let deadline = Instant::now() + RETRY_AFTER_MAX;
        let slot = || queue.enqueue(&tenant, 1, 0).acquire(Duration::ZERO, deadline);
        let permits = Some(CallPermits::for_test(slot().await.unwrap()).await);
        let call = NewCall { permits, ..NewCall::gateway(deadline) };
        let call = endpoint.connection.register(call).unwrap();
        let mut response = axum::http::Response::builder().status(status);
        if let Some(asked) = asked {
            response = response.header(RETRY_AFTER, asked);
        }
        let body = body.replace("$id", &call.id().to_string());
        let response = Response::from(response.body(body).unwrap());
        let failure =
            handle_refusal(&endpoint, call.id(), response, method::TOOLS_CALL, false).await;
        let began = Instant::now();
        assert!(slot().await.is_ok());
        (failure.unwrap_err(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_pauses_its_tenant_only_briefly() {
        for (asked, paused) in [("3", 3), ("300", 10)] {
            let retry_after = Some(Duration::from_secs(asked.parse().unwrap()));
            let failure = RequestError::Http { status: 429, retry_after };
            let expected = (failure, Duration::from_secs(paused));
            assert_eq!(refused(429, Some(asked), "").await, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_asks_for_a_pause_gets_it_whatever_else_it_says() {
        let error = r#"{"jsonrpc":"2.0","id":$id,"error":{"code":-32000,"message":"too many"}}"#;
        let second = Duration::from_secs(1);
        for (status, asked, body, wait) in [
            (429, None, "", Some(second)),
            (429, None, error, Some(second)),
            (429, Some("3"), error, Some(3 * second)),
            (503, Some("3"), error, Some(3 * second)),
            // May come from a proxy.
            (503, None, "", None),
        ] {
            let failure = RequestError::Http { status, retry_after: wait };
            let expected = (failure, wait.unwrap_or_default());
            assert_eq!(refused(status, asked, body).await, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_is_a_sign_of_life() {
        let endpoint = HttpEndpoint::unreachable();
        for status in [401, 429, 500, 502] {
            tokio::time::advance(Duration::from_secs(60)).await;
            let response = axum::http::Response::builder().status(status).body("").unwrap();
            handle_refusal(&endpoint, 1, Response::from(response), method::TOOLS_CALL, false)
                .await
                .unwrap_err();
            assert_eq!(endpoint.connection.liveness.silent_for(), Duration::ZERO, "{status}");
        }
    }

    #[test]
    fn an_unknown_session_is_distinguished_from_other_errors() {
        let body = |code: i64, message: &str| {
            format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"{message}"}}}}"#)
        };
        let bad_request = body(-32000, "Bad Request: No valid session ID provided");
        let not_found = body(-32001, "Session not found");
        let after = |status, body: &str| session_after(status, body.as_bytes(), false);
        let lost = |status, body: &str| after(status, body) == UpstreamSession::Gone;
        assert!(lost(400, &bad_request) && lost(400, &not_found) && lost(404, &not_found));
        assert!(lost(404, &body(-32600, "Session not found")));
        for body in ["", "<p>", "session not found", &body(-32600, "Not found")] {
            assert_eq!(after(404, body), UpstreamSession::InDoubt, "{body}");
        }
        assert!(!lost(400, &body(-32602, "no such session")));
        assert!(!lost(400, &body(-32000, "Bad Request")) && !lost(400, "session"));
        assert!(!lost(500, &bad_request) && !lost(403, &not_found));

        // The answer to the request, by its id.
        let lost = |status, body: &str| {
            session_after(status, body.as_bytes(), true) == UpstreamSession::Gone
        };
        assert!(lost(400, &bad_request) && lost(404, &not_found));
        assert!(!lost(400, &not_found) && !lost(500, &bad_request) && !lost(404, ""));
        for message in ["browser session is busy", "Session not found", "no session: bad request"] {
            assert!(!lost(400, &body(-32000, message)), "{message}");
        }
        assert!(!lost(404, &body(-32001, "The browser session was not found")));
    }

    #[test]
    fn only_an_error_for_the_same_request_is_its_answer() {
        let error = |id: &str| {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"?"}}}}"#);
            error_of(body.as_bytes(), 7)
        };
        assert_eq!(error("7"), Some(-32601));
        assert_eq!((error("8"), error("null"), error("\"7\"")), (None, None, None));
        assert_eq!(error_of(br#"{"jsonrpc":"2.0","id":7,"result":{}}"#, 7), None);
    }
}
