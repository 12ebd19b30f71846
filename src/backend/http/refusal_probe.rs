//! Finds out whether a server that refuses one request refuses everything.
//!
//! One tool or one tenant may be refused for reasons of its own, which must not take the server
//! from others. So the gateway probes the server: it lists the tools, as when a connection is
//! opened. If the server refuses that too, and has answered nothing else meanwhile, the connection
//! is retired. The next connection's handshake finds out what the server speaks now. If the
//! handshake fails, operators see the reason, and the supervisor tries again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::HttpEndpoint;
use super::call::BAD_REDIRECT;
use super::refusal::TOKEN_REFUSED;
use crate::backend::connection::{Answer, CloseReason, RequestError};
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST};
use crate::protocol::mcp::requests::Dialect;
use crate::protocol::mcp::{HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, method};

/// A server is probed at most once in this time, however many calls are refused.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
/// The longest time that a refused call waits for the probe. Another connection may accept the
/// call.
const WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct RefusalProbe {
    triggered: Notify,
    /// Whether the last probe was less than [`PROBE_INTERVAL`] ago.
    is_settled: watch::Sender<bool>,
    /// Whether the server has answered any request since the last probe began.
    has_answered: AtomicBool,
}

impl RefusalProbe {
    pub(super) fn note_answer(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }
}

/// Returns whether the failure of such a request may concern the whole connection. Before the
/// handshake is over no failure does, and the probe must not trigger itself.
pub(super) fn is_relevant(endpoint: &HttpEndpoint, method: &str) -> bool {
    method != method::TOOLS_LIST && endpoint.connection.version().is_some()
}

pub(super) fn trigger(endpoint: &HttpEndpoint) {
    endpoint.refusal_probe.triggered.notify_one();
}

/// Triggers a probe and waits for its result while the call `id` has time. Returns why the
/// connection was retired, if it was.
pub(super) async fn wait(endpoint: &HttpEndpoint, id: u64) -> Option<RequestError> {
    trigger(endpoint);
    let deadline = endpoint.connection.in_flight.deadline(id);
    let left = deadline.map_or(Duration::ZERO, |it| it.duration_since(Instant::now()));
    let mut is_settled = endpoint.refusal_probe.is_settled.subscribe();
    let _ = timeout(WAIT_MAX.min(left / 2), is_settled.wait_for(|it| *it)).await;
    endpoint.connection.retired().cloned()
}

/// Returns the failure to report for the call `id`. A call that was refused before it was executed
/// counts as unreached if the server refuses everything.
pub(super) async fn classify(
    endpoint: &HttpEndpoint,
    id: u64,
    failure: RequestError,
) -> RequestError {
    if lasting_fault(&failure).is_none() {
        return failure;
    }
    match failure {
        RequestError::Http { status: 400 | 401 | 403..=406 | 410, .. }
        | RequestError::Unreached { .. } => wait(endpoint, id).await.unwrap_or(failure),
        _ => {
            trigger(endpoint);
            failure
        }
    }
}

/// Probes the server whenever triggered, until the connection is retired.
pub(super) async fn run(endpoint: Arc<HttpEndpoint>) {
    let state = &endpoint.refusal_probe;
    loop {
        state.triggered.notified().await;
        state.has_answered.store(false, Ordering::Relaxed);
        if let Some(reason) = probe(&endpoint).await
            && !state.has_answered.load(Ordering::Relaxed)
        {
            endpoint.connection.retire(reason.clone(), reason);
        }
        state.is_settled.send_replace(true);
        if endpoint.connection.retired().is_some() {
            return;
        }
        sleep(PROBE_INTERVAL).await;
        state.is_settled.send_replace(false);
    }
}

/// Lists the tools and returns the reason if that is refused. A ping would not do: some servers
/// answer it without checking session or version.
async fn probe(endpoint: &HttpEndpoint) -> Option<String> {
    let dialect = Dialect::new(endpoint.connection.version()?);
    let deadline = Instant::now() + endpoint.init_timeout;
    match endpoint.connection.request(deadline, |id| dialect.tools_list(id, None)).await {
        Ok(Answer::Result(_)) => None,
        Ok(Answer::Error(error)) => {
            let code = serde_json::from_slice::<ErrorObject>(&error).ok()?.code;
            // The probe contains nothing of a caller, so these codes mean that its form is wrong.
            let rejects_form = matches!(
                code,
                UNSUPPORTED_PROTOCOL_VERSION | HEADER_MISMATCH | INVALID_REQUEST | INVALID_PARAMS
            );
            rejects_form.then(|| format!("it answers everything with the error {code}"))
        }
        Err(failure) => lasting_fault(&failure),
    }
}

/// Returns the reason to report if every request fails like this. Returns `None` for faults that
/// may pass: too early, too many requests, a lost connection.
fn lasting_fault(failure: &RequestError) -> Option<String> {
    match failure {
        RequestError::Http { status: 408 | 409 | 425 | 429 | 499, .. }
        | RequestError::Http { status: 503, retry_after: Some(_) } => None,
        RequestError::Http { status, .. } => {
            Some(format!("it answers everything with the HTTP status {status}"))
        }
        RequestError::Unreached { reason, .. }
            if reason == BAD_REDIRECT || reason.starts_with(TOKEN_REFUSED) =>
        {
            Some(reason.to_string())
        }
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

    /// Returns an endpoint after its handshake, and its outgoing frames.
    fn connected() -> (Arc<HttpEndpoint>, mpsc::Receiver<Outgoing>) {
        let (connection, outgoing) = Connection::new(options(), true);
        connection.set_version(ProtocolVersion::LATEST);
        let endpoint = Arc::new(HttpEndpoint::of(connection));
        tokio::spawn(run(endpoint.clone()));
        (endpoint, outgoing)
    }

    /// Takes the probe's request and returns its id.
    async fn probed(endpoint: &HttpEndpoint, outgoing: &mut mpsc::Receiver<Outgoing>) -> u64 {
        let Some(Outgoing::Request { id, .. }) = outgoing.recv().await else { panic!("no probe") };
        assert!(endpoint.connection.in_flight.claim_one(id, Instant::now()));
        id
    }

    async fn answer(endpoint: &HttpEndpoint, id: u64, outcome: Result<Answer, RequestError>) {
        endpoint.connection.in_flight.complete(id, outcome);
        let mut is_settled = endpoint.refusal_probe.is_settled.subscribe();
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
    async fn a_connection_is_retired_if_the_probe_is_refused_too() {
        let second = Some(Duration::from_secs(1));
        let end = CloseReason::Protocol("it makes no sense".to_owned());
        for (outcome, reason) in [
            (Err(http(401)), "it answers everything with the HTTP status 401"),
            (Err(http(500)), "it answers everything with the HTTP status 500"),
            (error(UNSUPPORTED_PROTOCOL_VERSION), "it answers everything with the error -32022"),
            (error(INVALID_PARAMS), "it answers everything with the error -32602"),
            (Err(unreached(BAD_REDIRECT)), BAD_REDIRECT),
            (Err(RequestError::Closed { reason: end, written: true }), "it makes no sense"),
            (Ok(Answer::Result("{}".into())), ""),
            (error(METHOD_NOT_FOUND), ""),
            (Err(http(429)), ""),
            (Err(RequestError::Http { status: 503, retry_after: second }), ""),
            (Err(RequestError::Expired { written: true }), ""),
            (Err(unreached("it cannot be reached")), ""),
        ] {
            let (endpoint, mut outgoing) = connected();
            trigger(&endpoint);
            let id = probed(&endpoint, &mut outgoing).await;
            answer(&endpoint, id, outcome).await;
            match endpoint.connection.retired() {
                Some(RequestError::Unreached { reason: given, .. }) => assert_eq!(given, reason),
                retired => assert_eq!((retired, reason), (None, "")),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_others_does_not_refuse_everything() {
        let (endpoint, mut outgoing) = connected();
        endpoint.refusal_probe.note_answer();
        for is_answering in [true, false] {
            trigger(&endpoint);
            let id = probed(&endpoint, &mut outgoing).await;
            if is_answering {
                endpoint.refusal_probe.note_answer();
            }
            answer(&endpoint, id, Err(http(500))).await;
            assert_eq!(endpoint.connection.retired().is_none(), is_answering);
            advance(PROBE_INTERVAL).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_calls_are_refused_the_server_is_probed_once_per_interval() {
        let (endpoint, mut outgoing) = connected();
        let began = Instant::now();
        for _ in 0..3 {
            for _ in 0..10 {
                trigger(&endpoint);
                yield_now().await;
            }
            let id = probed(&endpoint, &mut outgoing).await;
            answer(&endpoint, id, Ok(Answer::Result("{}".into()))).await;
            // No call waits while the last result is fresh.
            let now = Instant::now();
            assert_eq!(classify(&endpoint, 1, http(401)).await, http(401));
            assert_eq!(now.elapsed(), Duration::ZERO);
        }
        assert_eq!(began.elapsed(), 2 * PROBE_INTERVAL);
    }

    #[tokio::test]
    async fn neither_the_handshake_nor_the_probe_itself_triggers_a_probe() {
        let endpoint = HttpEndpoint::unreachable();
        assert!(!is_relevant(&endpoint, method::TOOLS_CALL));
        endpoint.connection.set_version(ProtocolVersion::LATEST);
        assert!(
            is_relevant(&endpoint, method::TOOLS_CALL)
                && !is_relevant(&endpoint, method::TOOLS_LIST)
        );
    }
}
