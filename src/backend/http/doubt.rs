//! Whether a server that refuses one request refuses everything. Then the connection is of no use, although it is there.
//!
//! A tool, or what one tenant asks of it, may be refused for reasons of its own, and that must not take the server from
//! others. So the server is asked for its tools, as it is when a connection is opened. If it refuses that too, and has
//! answered nothing else meanwhile, another connection takes this one's place: its handshake finds out what the server
//! speaks now, or fails, so that operators see what is wrong, and goes on until nothing is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::Link;
use super::call::ASTRAY;
use crate::backend::connection::{Answer, CloseReason, RequestError};
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST};
use crate::protocol::mcp::requests::Dialect;
use crate::protocol::mcp::{HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, method};

/// A server is asked at most once in this time, and whoever is refused meanwhile.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// A call that was refused waits at most so long for what comes of it: on another connection it may be taken.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// What is doubted of one connection.
#[derive(Default)]
pub(super) struct Doubt {
    raised: Notify,
    /// Whether the server was asked a moment ago.
    is_settled: watch::Sender<bool>,
    /// Whether it has answered anything since it was last asked.
    has_answered: AtomicBool,
}

impl Doubt {
    /// The server has answered a request as it should.
    pub(super) fn note_answer(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }
}

/// Whether the fate of such a request says something about the connection. Before the handshake is over nothing does, and
/// the question must not raise itself.
pub(super) fn is_telling(link: &Link, method: &str) -> bool {
    method != method::TOOLS_LIST && link.connection.version().is_some()
}

/// Has the server asked.
pub(super) fn raise(link: &Link) {
    link.doubt.raised.notify_one();
}

/// Has the server asked, and waits for what comes of it while the call `id` has time. Gives why the connection is given
/// up, if it is.
pub(super) async fn verdict(link: &Link, id: u64) -> Option<RequestError> {
    raise(link);
    let deadline = link.connection.in_flight.deadline(id);
    let left = deadline.map_or(Duration::ZERO, |it| it.duration_since(Instant::now()));
    let mut is_settled = link.doubt.is_settled.subscribe();
    let _ = timeout(WAIT_MAX.min(left / 2), is_settled.wait_for(|it| *it)).await;
    link.connection.retired().cloned()
}

/// What becomes of the call `id` that failed so. If it was refused before anything was done, and so is everything else,
/// it has not met the server that it was meant for.
pub(super) async fn consider(link: &Link, id: u64, failure: RequestError) -> RequestError {
    if complaint(&failure).is_none() {
        return failure;
    }
    match failure {
        RequestError::Http { status: 400 | 401 | 403..=406 | 410, .. } | RequestError::Unreached { .. } => {
            verdict(link, id).await.unwrap_or(failure)
        }
        _ => {
            raise(link);
            failure
        }
    }
}

/// Asks whenever there is doubt, until the connection is given up.
pub(super) async fn settle(link: Arc<Link>) {
    let doubt = &link.doubt;
    loop {
        doubt.raised.notified().await;
        doubt.has_answered.store(false, Ordering::Relaxed);
        if let Some(reason) = ask(&link).await
            && !doubt.has_answered.load(Ordering::Relaxed)
        {
            link.connection.retire(reason.clone(), reason);
        }
        doubt.is_settled.send_replace(true);
        if link.connection.retired().is_some() {
            return;
        }
        sleep(ASK_EVERY).await;
        doubt.is_settled.send_replace(false);
    }
}

/// Asks for the tools. Says what is wrong if that is refused; a ping would not do, since some answer it without a look at
/// session or version.
async fn ask(link: &Link) -> Option<String> {
    let dialect = Dialect::new(link.connection.version()?);
    let deadline = Instant::now() + link.init_timeout;
    match link.connection.request(deadline, |id| dialect.tools_list(id, None)).await {
        Ok(Answer::Result(_)) => None,
        Ok(Answer::Error(error)) => {
            let code = serde_json::from_slice::<ErrorObject>(&error).ok()?.code;
            // Nothing in the question is a caller's: it is its form that is not understood.
            let is_senseless_to_it = matches!(
                code,
                UNSUPPORTED_PROTOCOL_VERSION | HEADER_MISMATCH | INVALID_REQUEST | INVALID_PARAMS
            );
            is_senseless_to_it.then(|| format!("it answers everything with the error {code}"))
        }
        Err(failure) => complaint(&failure),
    }
}

/// What is wrong with a server that lets everything fail so. Not what passes: what was too early, too much, or broke off.
fn complaint(failure: &RequestError) -> Option<String> {
    match failure {
        RequestError::Http { status: 408 | 409 | 425 | 429 | 499, .. }
        | RequestError::Http { status: 503, retry_after: Some(_) } => None,
        RequestError::Http { status, .. } => {
            Some(format!("it answers everything with the HTTP status {status}"))
        }
        RequestError::Unreached { reason, .. } if reason == ASTRAY => Some(reason.to_string()),
        RequestError::Closed { reason: CloseReason::Protocol(reason), .. } => Some(reason.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;
    use crate::backend::connection::{Connection, Outgoing};
    use crate::backend::testing::options;
    use crate::protocol::jsonrpc::METHOD_NOT_FOUND;
    use crate::protocol::mcp::ProtocolVersion;

    /// A connection that is settled, and what its server is asked.
    fn settled() -> (Arc<Link>, mpsc::Receiver<Outgoing>) {
        let (connection, outgoing) = Connection::new(options(), true);
        connection.set_version(ProtocolVersion::LATEST);
        let link = Arc::new(Link::of(connection));
        tokio::spawn(settle(link.clone()));
        (link, outgoing)
    }

    /// Takes the question.
    async fn asked(link: &Link, outgoing: &mut mpsc::Receiver<Outgoing>) -> u64 {
        let Some(Outgoing::Request { id, .. }) = outgoing.recv().await else { panic!("unasked") };
        assert!(link.connection.in_flight.claim_one(id, Instant::now()));
        id
    }

    async fn answer(link: &Link, id: u64, outcome: Result<Answer, RequestError>) {
        link.connection.in_flight.complete(id, outcome);
        let mut is_settled = link.doubt.is_settled.subscribe();
        is_settled.wait_for(|it| *it).await.unwrap();
    }

    fn http(status: u16) -> RequestError {
        RequestError::Http { status, retry_after: None }
    }

    fn unreached(reason: &'static str) -> RequestError {
        RequestError::Unreached { reason: reason.into(), detail: String::new() }
    }

    fn error(code: i64) -> Result<Answer, RequestError> {
        Ok(Answer::Error(format!(r#"{{"code":{code},"message":"no"}}"#).into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_given_up_if_the_question_is_refused_too() {
        let second = Some(Duration::from_secs(1));
        let end = CloseReason::Protocol("it makes no sense".to_owned());
        for (outcome, reason) in [
            (Err(http(401)), "it answers everything with the HTTP status 401"),
            (Err(http(500)), "it answers everything with the HTTP status 500"),
            (error(UNSUPPORTED_PROTOCOL_VERSION), "it answers everything with the error -32022"),
            (error(INVALID_PARAMS), "it answers everything with the error -32602"),
            (Err(unreached(ASTRAY)), ASTRAY),
            (Err(RequestError::Closed { reason: end, written: true }), "it makes no sense"),
            (Ok(Answer::Result("{}".into())), ""),
            (error(METHOD_NOT_FOUND), ""),
            (Err(http(429)), ""),
            (Err(RequestError::Http { status: 503, retry_after: second }), ""),
            (Err(RequestError::Expired { written: true }), ""),
            (Err(unreached("it cannot be reached")), ""),
        ] {
            let (link, mut outgoing) = settled();
            raise(&link);
            let id = asked(&link, &mut outgoing).await;
            answer(&link, id, outcome).await;
            match link.connection.retired() {
                Some(RequestError::Unreached { reason: given, .. }) => assert_eq!(given, reason),
                given_up => assert_eq!((given_up, reason), (None, "")),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_others_does_not_refuse_everything() {
        let (link, mut outgoing) = settled();
        link.doubt.note_answer();
        for is_answering in [true, false] {
            raise(&link);
            let id = asked(&link, &mut outgoing).await;
            if is_answering {
                link.doubt.note_answer();
            }
            answer(&link, id, Err(http(500))).await;
            assert_eq!(link.connection.retired().is_none(), is_answering);
            advance(ASK_EVERY).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_are_refused_the_server_is_asked_once_in_a_while() {
        let (link, mut outgoing) = settled();
        let began = Instant::now();
        for _ in 0..3 {
            for _ in 0..10 {
                raise(&link);
                yield_now().await;
            }
            let id = asked(&link, &mut outgoing).await;
            answer(&link, id, Ok(Answer::Result("{}".into()))).await;
            // Nobody waits for what is known.
            let now = Instant::now();
            assert_eq!(consider(&link, 1, http(401)).await, http(401));
            assert_eq!(now.elapsed(), Duration::ZERO);
        }
        assert_eq!(began.elapsed(), 2 * ASK_EVERY);
    }

    #[tokio::test]
    async fn nothing_before_the_end_of_the_handshake_and_not_the_question_itself_raises_doubt() {
        let link = Link::to_nowhere();
        assert!(!is_telling(&link, method::TOOLS_CALL));
        link.connection.set_version(ProtocolVersion::LATEST);
        assert!(is_telling(&link, method::TOOLS_CALL) && !is_telling(&link, method::TOOLS_LIST));
    }
}
