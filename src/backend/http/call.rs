//! One request, from its post to its answer.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{HeaderMap, HeaderValue};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Link;
use super::client::SendError;
use super::doubt;
use super::head::{Head, SESSION};
use super::refusal::refused;
use super::sse::SseDecoder;
use super::stream::{Ended, Kind, drain, kind_of, read_events, read_whole, take};
use crate::backend::connection::{CloseReason, RequestError};
use crate::backend::connection::incoming::{ExpectedAnswers, MessageKind};
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::method;

/// The longest id of a session.
const SESSION_LEN_MAX: usize = 1024;
/// Before a stream that has broken off is asked for again, when the server has not said.
const RESUME_AFTER: Duration = Duration::from_secs(1);
/// At least so long, whatever the server says.
const RESUME_AFTER_MIN: Duration = Duration::from_millis(50);
/// How often to look whether a call whose time is over is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A server that was heard so lately is there, though one connection to it could not be made.
const HEARD_LATELY: Duration = Duration::from_secs(1);

/// Why a request was sent on to where it must not go.
pub(super) const ASTRAY: &str = "it redirects to where it must not";

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
            if let Err(failure) = outcome {
                if failure == RequestError::TooLarge {
                    connection.metrics.too_long_lines.inc();
                }
                connection.in_flight.complete(id, Err(failure));
            }
        }
        () = given_up(&link, id, &cancelled) => {}
        _ = connection.closed() => {}
    }
    id
}

/// Done when nobody is interested in the answer any more. A modern server learns of that by the end of the
/// stream. A legacy one has been told, and may still answer.
async fn given_up(link: &Link, id: u64, cancelled: &CancellationToken) {
    let (connection, grace) = (&link.connection, link.connection.grace);
    let told = async {
        cancelled.cancelled().await;
        if !link.is_modern() {
            sleep(grace).await;
        }
    };
    let forgotten = async {
        while let Some(deadline) = connection.in_flight.deadline(id) {
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
) -> Result<(), RequestError> {
    let head = Head::of(&frame);
    let headers = head.headers(link, params)?;
    match exchange(link, id, frame, &head, &headers).await {
        Err(failure) if doubt::is_telling(link, &head.method) => {
            Err(doubt::consider(link, id, failure).await)
        }
        outcome => outcome,
    }
}

async fn exchange(
    link: &Link,
    id: u64,
    frame: Frame,
    head: &Head,
    headers: &HeaderMap,
) -> Result<(), RequestError> {
    let mut response = link.post(headers, frame).await.map_err(|error| unsent(link, error))?;
    if !response.status().is_success() {
        return refused(link, id, response, &head.method, headers.contains_key(SESSION)).await;
    }
    if head.method == method::INITIALIZE {
        note_session(link, response.headers());
    }
    let answered = match kind_of(&response) {
        Kind::Json => {
            let body = read_whole(&mut response, link.message_len_max).await.map_err(cut_off)?;
            match take(link, body, ExpectedAnswers::To(id)).await {
                MessageKind::Answer => Ok(()),
                _ => Err(senseless("it answered with something else than an answer")),
            }
        }
        Kind::Events => follow(link, id, response).await,
        Kind::Other => Err(senseless("its answer is neither JSON nor a stream of events")),
    };
    if answered.is_ok() {
        link.doubt.note_answer();
    }
    answered
}

/// Reads a stream until the answer. A legacy server may end it and go on where it is asked to.
async fn follow(link: &Link, id: u64, mut response: Response) -> Result<(), RequestError> {
    let mut decoder = SseDecoder::new(link.message_len_max);
    loop {
        let ended = read_events(link, &mut response, &mut decoder, ExpectedAnswers::To(id)).await;
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

async fn finish(ended: Ended, response: Response) -> Result<(), RequestError> {
    if ended == Ended::Answered {
        drain(response).await;
        return Ok(());
    }
    Err(cut_off(ended))
}

/// The server may have done what it was asked; nobody will know.
fn cut_off(ended: Ended) -> RequestError {
    match ended {
        Ended::TooLarge => RequestError::TooLarge,
        Ended::Flood => senseless("it floods its answer with what is no message"),
        Ended::Answered | Ended::Over => senseless("it ended the response before the answer"),
        Ended::Broken(error) => {
            tracing::debug!(%error, "an answer broke off");
            exited("the connection to it was lost")
        }
    }
}

fn senseless(what: &str) -> RequestError {
    RequestError::Closed { reason: CloseReason::Protocol(what.to_owned()), written: true }
}

fn exited(how: &str) -> RequestError {
    RequestError::Closed { reason: CloseReason::Exited(how.to_owned()), written: true }
}

fn unsent(link: &Link, error: SendError) -> RequestError {
    let detail = error.to_string();
    match error {
        SendError::Unreachable(_) => {
            let reason = "it cannot be reached";
            if link.connection.liveness.silent_for() > HEARD_LATELY {
                link.connection.retire(reason, detail.clone());
            }
            RequestError::Unreached { reason: reason.into(), detail }
        }
        SendError::Elsewhere(_) | SendError::Nowhere => {
            tracing::warn!(reason = %detail, "a redirect is not followed");
            RequestError::Unreached { reason: ASTRAY.into(), detail }
        }
        SendError::Broken(_) => {
            tracing::debug!(%error, "a request broke off");
            exited("the connection to it was lost")
        }
    }
}

fn note_session(link: &Link, headers: &HeaderMap) {
    let is_id = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=SESSION_LEN_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    if let Some(session) = headers.get(SESSION).filter(is_id) {
        let mut session = session.clone();
        session.set_sensitive(true);
        let _ = link.session.set(session);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::backend::connection::Connection;

    #[tokio::test(start_paused = true)]
    async fn one_connection_that_cannot_be_made_is_no_reason_to_leave_a_server_that_was_just_heard()
    {
        let link = Link::to_nowhere();
        let is_retired = |connection: &Connection| connection.retired().is_some();
        let fail = || unsent(&link, SendError::Unreachable("refused".to_owned()));
        advance(HEARD_LATELY * 10).await;
        link.connection.liveness.note_output();
        advance(HEARD_LATELY).await;
        assert!(matches!(fail(), RequestError::Unreached { .. }) && !is_retired(&link.connection));
        advance(HEARD_LATELY).await;
        assert!(matches!(fail(), RequestError::Unreached { .. }) && is_retired(&link.connection));
    }
}
