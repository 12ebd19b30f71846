//! Posts one request and reads its answer.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{HeaderMap, HeaderValue};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::HttpEndpoint;
use super::client::SendError;
use super::headers::{MessageInfo, SESSION};
use super::oauth::{TokenError, TokenSource};
use super::refusal::handle_refusal;
use super::refusal_probe;
use super::sse::SseDecoder;
use super::stream::{BodyEnd, BodyKind, deliver, drain, kind_of, read_events, read_whole};
use crate::backend::connection::incoming::{ExpectedAnswers, MessageKind};
use crate::backend::connection::{CloseReason, RequestError};
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::method;

const SESSION_ID_LEN_MAX: usize = 1024;
/// The pause before a broken stream is resumed, unless the server names one.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
const RESUME_PAUSE_MIN: Duration = Duration::from_millis(50);
/// How often to check whether an overdue call is still in flight.
const OVERDUE_CHECK: Duration = Duration::from_secs(1);
/// A server heard from within this time is alive, although a connection to it has failed.
const HEARD_RECENTLY: Duration = Duration::from_secs(1);

pub(super) const BAD_REDIRECT: &str = "it redirects to a host that is not allowed";
const NO_TOKEN: &str = "the gateway has no access token for it";
const MOVED: &str = "it has moved to another address";

/// A request to be posted.
pub(super) struct RequestParts {
    pub(super) frame: Frame,
    /// Headers that repeat parts of the call.
    pub(super) params: Vec<(String, String)>,
    /// The tokens of its caller, if callers have their own.
    pub(super) caller: Option<Arc<TokenSource>>,
}

/// Sends a request and completes its in-flight call. Returns the call's id.
pub(super) async fn run(
    endpoint: Arc<HttpEndpoint>,
    id: u64,
    request: RequestParts,
    cancelled: CancellationToken,
) -> u64 {
    let connection = &endpoint.connection;
    tokio::select! {
        outcome = run_request(&endpoint, id, request) => {
            if let Err(failure) = outcome {
                if failure == RequestError::TooLarge {
                    connection.metrics.too_long_lines.inc();
                }
                connection.in_flight.complete(id, Err(failure));
            }
        }
        () = abandoned(&endpoint, id, &cancelled) => {}
        _ = connection.closed() => {}
    }
    id
}

/// Waits until nobody wants the answer any more. A modern server notices that the stream was
/// closed. A legacy server got a cancel notification and has the grace period to answer.
async fn abandoned(endpoint: &HttpEndpoint, id: u64, cancelled: &CancellationToken) {
    let (connection, grace) = (&endpoint.connection, endpoint.connection.grace);
    let cancelled = async {
        cancelled.cancelled().await;
        if !endpoint.is_modern() {
            sleep(grace).await;
        }
    };
    let expired = async {
        while let Some(deadline) = connection.in_flight.deadline(id) {
            sleep_until((deadline + grace).max(Instant::now() + OVERDUE_CHECK)).await;
        }
    };
    tokio::select! {
        () = cancelled => {}
        () = expired => {}
    }
}

async fn run_request(
    endpoint: &HttpEndpoint,
    id: u64,
    request: RequestParts,
) -> Result<(), RequestError> {
    let info = MessageInfo::of(&request.frame);
    let headers = info.headers(endpoint, &request.params)?;
    match exchange(endpoint, id, request, &info, &headers).await {
        Err(failure) if refusal_probe::is_relevant(endpoint, &info.method) => {
            Err(refusal_probe::classify(endpoint, id, failure).await)
        }
        outcome => outcome,
    }
}

async fn exchange(
    endpoint: &HttpEndpoint,
    id: u64,
    request: RequestParts,
    info: &MessageInfo,
    headers: &HeaderMap,
) -> Result<(), RequestError> {
    let RequestParts { frame, caller, .. } = request;
    let response = endpoint.post(headers, frame, caller.as_ref()).await;
    let mut response = response.map_err(|error| send_failure(endpoint, error))?;
    if !response.status().is_success() {
        let is_in_session = headers.contains_key(SESSION);
        return handle_refusal(endpoint, id, response, &info.method, is_in_session).await;
    }
    if info.method == method::INITIALIZE {
        keep_session_id(endpoint, response.headers());
    }
    let answered = match kind_of(&response) {
        BodyKind::Json => {
            let body =
                read_whole(&mut response, endpoint.message_len_max).await.map_err(cut_off)?;
            match deliver(endpoint, body, ExpectedAnswers::To(id)).await {
                MessageKind::Answer => Ok(()),
                _ => Err(protocol_error("its response is not the answer to the request")),
            }
        }
        BodyKind::Events => read_stream(endpoint, id, response, caller.as_ref()).await,
        BodyKind::Other => Err(protocol_error("its answer is neither JSON nor a stream of events")),
    };
    if answered.is_ok() {
        endpoint.refusal_probe.note_answer();
    }
    answered
}

/// Reads a stream until the answer. A stream of a legacy server that ends early is resumed.
async fn read_stream(
    endpoint: &HttpEndpoint,
    id: u64,
    mut response: Response,
    caller: Option<&Arc<TokenSource>>,
) -> Result<(), RequestError> {
    let mut decoder = SseDecoder::new(endpoint.message_len_max);
    loop {
        let ended =
            read_events(endpoint, &mut response, &mut decoder, ExpectedAnswers::To(id)).await;
        if ended == BodyEnd::Answered {
            drain(response).await;
            return Ok(());
        }
        let is_resumable = matches!(ended, BodyEnd::EndOfBody | BodyEnd::ConnectionLost(_));
        let last_id = decoder.last_id().filter(|_| is_resumable && !endpoint.is_modern());
        let Some(last_id) = last_id.map(str::to_owned) else { return Err(cut_off(ended)) };
        sleep(decoder.retry().unwrap_or(RESUME_PAUSE).max(RESUME_PAUSE_MIN)).await;
        response = match endpoint.get(Some(&last_id), caller).await {
            Ok(response) if response.status().is_success() => response,
            Ok(_) => return Err(cut_off(ended)),
            Err(error) => {
                tracing::debug!(%error, "a broken stream could not be resumed");
                return Err(cut_off(ended));
            }
        };
        decoder.restart();
    }
}

/// Returns the failure of a call whose answer did not arrive. The server may have executed it.
fn cut_off(ended: BodyEnd) -> RequestError {
    match ended {
        BodyEnd::TooLarge => RequestError::TooLarge,
        BodyEnd::Flood => protocol_error("it floods its response with data that is no message"),
        BodyEnd::Answered | BodyEnd::EndOfBody => {
            protocol_error("it ended the response before the answer")
        }
        BodyEnd::ConnectionLost(error) => connection_lost(&error),
    }
}

fn protocol_error(reason: &str) -> RequestError {
    RequestError::Closed { reason: CloseReason::Protocol(reason.to_owned()), written: true }
}

fn connection_lost(error: &str) -> RequestError {
    tracing::debug!(%error, "the connection was lost during a request");
    let reason = "the connection to it was lost".to_owned();
    RequestError::Closed { reason: CloseReason::Lost(reason), written: true }
}

fn send_failure(endpoint: &HttpEndpoint, error: SendError) -> RequestError {
    let detail = error.to_string();
    match error {
        SendError::Unreachable(_) => {
            let reason = "it cannot be reached";
            if endpoint.connection.liveness.silent_for() > HEARD_RECENTLY {
                endpoint.connection.retire(reason, detail.clone());
            }
            RequestError::Unreached { reason: reason.into(), detail }
        }
        SendError::NoToken(TokenError::NotConnected { server, url }) => {
            RequestError::NotConnected { server, url }
        }
        SendError::NoToken(_) => RequestError::Unreached { reason: NO_TOKEN.into(), detail },
        SendError::RedirectRefused(_) | SendError::BadRedirect => {
            tracing::warn!(reason = %detail, "a redirect is not followed");
            RequestError::Unreached { reason: BAD_REDIRECT.into(), detail }
        }
        SendError::Moved { status, .. } => {
            endpoint.connection.liveness.note_output();
            tracing::warn!(reason = %detail, "a redirect is not followed");
            match endpoint.connection.version() {
                // A handshake executes nothing, and the operator learns the address.
                None => RequestError::Unreached { reason: MOVED.into(), detail },
                Some(_) => RequestError::Http { status, retry_after: None },
            }
        }
        SendError::Broken(_) => connection_lost(&detail),
    }
}

fn keep_session_id(endpoint: &HttpEndpoint, headers: &HeaderMap) {
    let is_id = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=SESSION_ID_LEN_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    if let Some(session) = headers.get(SESSION).filter(is_id) {
        let mut session = session.clone();
        session.set_sensitive(true);
        let _ = endpoint.session.set(session);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::backend::connection::Connection;

    #[tokio::test(start_paused = true)]
    async fn one_failed_connection_does_not_retire_a_server_that_was_heard_recently() {
        let endpoint = HttpEndpoint::unreachable();
        let is_retired = |connection: &Connection| connection.retired().is_some();
        let fail = || send_failure(&endpoint, SendError::Unreachable("refused".to_owned()));
        advance(HEARD_RECENTLY * 10).await;
        endpoint.connection.liveness.note_output();
        advance(HEARD_RECENTLY).await;
        assert!(
            matches!(fail(), RequestError::Unreached { .. }) && !is_retired(&endpoint.connection)
        );
        advance(HEARD_RECENTLY).await;
        assert!(
            matches!(fail(), RequestError::Unreached { .. }) && is_retired(&endpoint.connection)
        );
    }
}
