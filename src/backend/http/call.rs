//! One request, from its post to its answer.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Link;
use super::client::SendError;
use super::head::{Head, SESSION};
use super::sse::SseDecoder;
use super::stream::{Ended, Kind, drain, kind_of, read_events, read_whole, take};
use crate::backend::pending::{End, NoAnswer};
use crate::backend::reader::Answers;
use crate::jsonrpc::envelope::ErrorObject;
use crate::jsonrpc::{Frame, Message, decode};
use crate::mcp::{HEADER_MISMATCH, method};

/// How much of the body of a refusal is looked at.
const REFUSAL_LEN_MAX: usize = 64 * 1024;
/// The codes with which SDKs refuse a session.
const SESSION_ERRORS: [i64; 2] = [-32000, -32001];
/// The longest id of a session.
const SESSION_LEN_MAX: usize = 1024;
/// Before a stream that has broken off is asked for again, when the server has not said.
const RESUME_AFTER: Duration = Duration::from_secs(1);
/// At least so long, whatever the server says.
const RESUME_AFTER_MIN: Duration = Duration::from_millis(50);
/// A server that wants to be left alone for longer is asked again all the same.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// How often to look whether a call whose time is over is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Sends a request and brings back its answer, or why there is none. Gives the id it was for.
pub(super) async fn run(
    link: Arc<Link>,
    id: u64,
    frame: Frame,
    params: Vec<(String, String)>,
    cancelled: CancellationToken,
) -> u64 {
    let connection = &link.connection;
    tokio::select! {
        outcome = converse(&link, id, frame, &params) => {
            if let Err(no_answer) = outcome {
                if no_answer == NoAnswer::TooLarge {
                    connection.metrics().too_long_lines.inc();
                }
                connection.pending().complete(id, Err(no_answer));
            }
        }
        () = given_up(&link, id, &cancelled) => {}
        () = connection.token().cancelled() => {}
    }
    id
}

/// Done when nobody is interested in the answer any more. A modern server learns of that by the end of the
/// stream. A legacy one has been told, and may still answer.
async fn given_up(link: &Link, id: u64, cancelled: &CancellationToken) {
    let (connection, grace) = (&link.connection, link.connection.grace());
    let told = async {
        cancelled.cancelled().await;
        if !link.is_modern() {
            sleep(grace).await;
        }
    };
    let forgotten = async {
        while let Some(deadline) = connection.pending().deadline(id) {
            sleep_until((deadline + grace).max(Instant::now() + LOOK_AGAIN)).await;
        }
    };
    tokio::select! {
        () = told => {}
        () = forgotten => {}
    }
}

async fn converse(
    link: &Link,
    id: u64,
    frame: Frame,
    params: &[(String, String)],
) -> Result<(), NoAnswer> {
    let head = Head::of(&frame);
    let headers = head.headers(link, params);
    let has_session = headers.contains_key(SESSION);
    let mut response = link.post(&headers, frame).await.map_err(|error| unsent(link, error))?;
    if !response.status().is_success() {
        return refused(link, id, response, has_session).await;
    }
    if head.method == method::INITIALIZE {
        note_session(link, response.headers());
    }
    match kind_of(&response) {
        Kind::Json => {
            let body = read_whole(&mut response, link.message_len_max).await.map_err(cut_off)?;
            match take(link, body, Answers::To(id)) {
                true => Ok(()),
                false => Err(senseless("it answered with something else than an answer")),
            }
        }
        Kind::Events => follow(link, id, response).await,
        Kind::Other => Err(senseless("its answer is neither JSON nor a stream of events")),
    }
}

/// Reads a stream until the answer. A legacy server may end it and go on where it is asked to.
async fn follow(link: &Link, id: u64, mut response: Response) -> Result<(), NoAnswer> {
    let mut decoder = SseDecoder::new(link.message_len_max);
    loop {
        let ended = read_events(link, &mut response, &mut decoder, Answers::To(id)).await;
        let Some(last_id) = decoder.last_id().filter(|_| !link.is_modern()).map(str::to_owned)
        else {
            return finish(ended, response).await;
        };
        if !matches!(ended, Ended::Over | Ended::Broken(_)) {
            return finish(ended, response).await;
        }
        sleep(decoder.retry().unwrap_or(RESUME_AFTER).max(RESUME_AFTER_MIN)).await;
        response = match link.get(Some(&last_id)).await {
            Ok(response) if response.status().is_success() => response,
            Ok(_) => return Err(cut_off(ended)),
            Err(error) => {
                tracing::debug!(%error, "an answer that broke off could not be resumed");
                return Err(cut_off(ended));
            }
        };
        decoder.begin_again();
    }
}

async fn finish(ended: Ended, response: Response) -> Result<(), NoAnswer> {
    if ended == Ended::Answered {
        drain(response).await;
        return Ok(());
    }
    Err(cut_off(ended))
}

/// The server may have done what it was asked; nobody will know.
fn cut_off(ended: Ended) -> NoAnswer {
    match ended {
        Ended::TooLarge => NoAnswer::TooLarge,
        Ended::Answered | Ended::Over => senseless("it ended the response before the answer"),
        Ended::Broken(error) => {
            tracing::debug!(%error, "an answer broke off");
            exited("the connection to it was lost")
        }
    }
}

fn senseless(what: &str) -> NoAnswer {
    NoAnswer::Ended { end: End::Protocol(what.to_owned()), written: true }
}

fn exited(how: &str) -> NoAnswer {
    NoAnswer::Ended { end: End::Exited(how.to_owned()), written: true }
}

fn unsent(link: &Link, error: SendError) -> NoAnswer {
    let detail = error.to_string();
    match error {
        SendError::Unreachable(_) => {
            let reason = "it cannot be reached";
            link.connection.retire(reason, detail.clone());
            NoAnswer::Unreached { reason, detail }
        }
        SendError::Elsewhere(_) | SendError::Nowhere => {
            tracing::warn!(reason = %detail, "a redirect is not followed");
            NoAnswer::Unreached { reason: "it redirects to where it must not", detail }
        }
        SendError::Broken(_) => {
            tracing::debug!(%error, "a request broke off");
            exited("the connection to it was lost")
        }
    }
}

/// A status that is no success. Modern servers say more in the body: that is an answer like any other.
async fn refused(
    link: &Link,
    id: u64,
    mut response: Response,
    has_session: bool,
) -> Result<(), NoAnswer> {
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    let body = read_whole(&mut response, REFUSAL_LEN_MAX).await.unwrap_or_default();
    let error_code = error_of(&body, id);
    if has_session && (status == 404 && error_code.is_none() || knows_no_session(&body)) {
        return Err(link.session_is_gone());
    }
    if let Some(code) = error_code {
        if code == HEADER_MISMATCH {
            // What the tool wants in headers is not what it said when it was listed.
            link.connection.note_tools_changed();
        }
        take(link, body, Answers::To(id));
        return Ok(());
    }
    if let (429 | 503, Some(retry_after)) = (status, retry_after) {
        link.connection.pause(Instant::now() + retry_after);
    }
    Err(NoAnswer::Http { status, retry_after })
}

/// Some servers do not say 404 when they do not know a session, as the specification asks, but this.
fn knows_no_session(body: &[u8]) -> bool {
    let Ok(Message::Response { outcome: Err(error), .. }) = decode(body) else { return false };
    serde_json::from_str::<ErrorObject>(error.get()).is_ok_and(|error| {
        SESSION_ERRORS.contains(&error.code) && error.message.to_lowercase().contains("session")
    })
}

/// The code of the JSON-RPC error that answers `id`.
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

fn note_session(link: &Link, headers: &HeaderMap) {
    let is_id = |value: &&reqwest::header::HeaderValue| {
        let bytes = value.as_bytes();
        (1..=SESSION_LEN_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    if let Some(session) = headers.get(SESSION).filter(is_id) {
        let mut session = session.clone();
        session.set_sensitive(true);
        let _ = link.session.set(session);
    }
}

/// `Retry-After`, in seconds or as a date.
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
    Some(wait.min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(value: &str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
        retry_after(&headers)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_never_for_ever() {
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("99999999"), Some(PAUSE_MAX));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
        let later =
            jiff::fmt::rfc2822::to_string(&later.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
        assert!(wait(&later).unwrap() > Duration::from_secs(50), "{later}");
        assert_eq!((wait("soon"), wait("-1")), (None, None));
    }

    #[test]
    fn a_session_that_is_not_known_is_told_from_other_errors() {
        let body = |code: i64, message: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"{message}"}}}}"#)
        };
        let lost = |body: String| knows_no_session(body.as_bytes());
        assert!(lost(body(-32000, "Bad Request: No valid session ID provided")));
        assert!(lost(body(-32001, "Session not found")));
        assert!(!lost(body(-32602, "no such session")));
        assert!(!lost(body(-32000, "Bad Request")));
        assert!(!lost("session".to_owned()));
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
