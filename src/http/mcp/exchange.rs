//! One request on its way: what its server says meanwhile, and then its answer.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use tokio::time::timeout;

use super::reshape::Reshape;
use super::{rpc, sse};
use crate::backend::during::Events;
use crate::gateway::{CallError, Reply};
use crate::http::error::rate_headers;
use crate::http::rest::{ATTEMPTS, CALL_ID, call_id_value};
use crate::ids::CallId;

/// How long a request may be silent before its response begins.
const SILENCE_MAX: Duration = Duration::from_secs(25);

/// The outcome of a call; `None` if it was cancelled and shall not be answered.
pub(super) type Outcome = Option<Result<Reply, CallError>>;

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A call that may have something to say before its answer.
pub(super) struct Exchange {
    /// `None` once it has ended.
    running: Option<Running>,
    events: Events,
    outcome: Option<Outcome>,
    reshape: Reshape,
}

enum Step {
    Event(Bytes),
    End(Outcome),
}

impl Exchange {
    pub(super) fn new(
        running: impl Future<Output = Outcome> + Send + 'static,
        events: Events,
        reshape: Reshape,
    ) -> Self {
        Self { running: Some(Box::pin(running)), events, outcome: None, reshape }
    }

    /// Answers with JSON if the answer is the first thing that comes, else with a stream. So nobody has to guess
    /// beforehand whether a server will have something to say. After a long silence it is a stream, too, so that
    /// nobody between takes the connection for dead. `None`: it was cancelled.
    pub(super) async fn respond(mut self, call: CallId) -> Option<Response<Body>> {
        let mut response = match timeout(SILENCE_MAX, self.step()).await {
            Ok(Step::Event(first)) => {
                sse::respond(Begun { first: Some(first), exchange: Some(self) })
            }
            Ok(Step::End(outcome)) => self.reshape.respond(outcome?),
            Err(_) => sse::respond(Begun { first: None, exchange: Some(self) }),
        };
        response.headers_mut().insert(CALL_ID.clone(), call_id_value(call));
        Some(response)
    }

    /// The next event, or the outcome when all events before it are out. Safe to give up.
    async fn step(&mut self) -> Step {
        loop {
            if let Some(outcome) = &mut self.outcome {
                // All that came before the answer is there already.
                let Some(event) = self.events.try_recv() else { return Step::End(outcome.take()) };
                match self.reshape.event(event) {
                    Some(message) => return Step::Event(message),
                    None => continue,
                }
            }
            let running = self.running.as_mut().expect("there is no outcome yet");
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => {
                    if let Some(message) = self.reshape.event(event) {
                        return Step::Event(message);
                    }
                }
                outcome = poll_fn(|cx| running.as_mut().poll(cx)) => {
                    self.running = None;
                    self.outcome = Some(outcome);
                }
            }
        }
    }
}

/// An exchange that has become a stream.
struct Begun {
    first: Option<Bytes>,
    /// `None` after the answer.
    exchange: Option<Exchange>,
}

impl sse::Source for Begun {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        match self.exchange.as_mut()?.step().await {
            Step::Event(event) => Some(event),
            Step::End(outcome) => {
                let exchange = self.exchange.take()?;
                outcome.map(|outcome| exchange.reshape.message(outcome).1)
            }
        }
    }
}

/// A call that has nothing to say before its answer.
pub(super) fn respond_at_once(
    outcome: Result<Reply, CallError>,
    reshape: &Reshape,
    call: CallId,
) -> Response<Body> {
    let mut response = reshape.respond(outcome);
    response.headers_mut().insert(CALL_ID.clone(), call_id_value(call));
    response
}

impl Reshape {
    fn respond(&self, outcome: Result<Reply, CallError>) -> Response<Body> {
        let standing = match &outcome {
            Ok(reply) => reply.standing.clone(),
            Err(error) => error.standing().cloned().unwrap_or_default(),
        };
        let attempts = outcome.as_ref().map_or_else(CallError::attempts, |reply| reply.attempts);
        let (status, message): (StatusCode, Bytes) = self.message(outcome);
        let mut response = rpc::respond(status, message);
        response.headers_mut().insert(ATTEMPTS.clone(), attempts.into());
        rate_headers(response.headers_mut(), &standing);
        response
    }
}
