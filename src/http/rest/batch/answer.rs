//! The response to a batch: all outcomes as one JSON object, or as NDJSON a line for each call.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::calls::batch::outcome::{ItemOutcome, PIECE_LEN, write_all};
use crate::calls::batch::{Rights, RunningBatch};
use crate::calls::{Outcome, OutcomeKind};
use crate::http::error::HttpResult;
use crate::http::unsent::hold;
use crate::tenants::Tenant;

pub(super) const NDJSON: &str = "application/x-ndjson";

/// Runs the batch and responds with all outcomes. If the caller hangs up, the calls are cancelled.
pub(super) async fn whole<R: Rights>(running: RunningBatch<R>) -> Response<Body> {
    let mut outcomes: Vec<Option<ItemOutcome>> = running.batch.calls.iter().map(|_| None).collect();
    running.run(|call, outcome| outcomes[call] = Some(outcome)).await;
    let outcomes: Vec<ItemOutcome> = outcomes.into_iter().flatten().collect();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status(running.options.status(&outcomes));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    let ids = running.batch.calls.into_iter().map(|call| call.id).collect();
    let mut pieces = write_all(ids, outcomes).peekable();
    let first = pieces.next().unwrap_or_default();
    *response.body_mut() = match pieces.peek() {
        None => Body::from(first),
        // The rest is written as the caller reads.
        Some(_) => {
            let pieces = std::iter::once(first).chain(pieces).map(Ok::<_, std::io::Error>);
            Body::from_stream(stream::iter(pieces))
        }
    };
    response
}

/// Writes the answer of an asynchronous batch that has ended, if there is room for it.
pub(super) fn kept(outcome: &Outcome, tenant: &Tenant) -> HttpResult {
    let held = outcome.hold(tenant)?;
    let is_error = outcome.head.outcome == OutcomeKind::Error;
    let content_type = if is_error { "application/problem+json" } else { "application/json" };
    let headers = [(header::CONTENT_TYPE, content_type)];
    let mut response = (status(outcome.head.status), headers, outcome.body.clone()).into_response();
    hold(&mut response, held);
    Ok(response)
}

fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::BAD_GATEWAY)
}

/// Runs the batch in a task of its own, and responds with the outcomes as they come. If the caller
/// hangs up, the task ends and the calls are cancelled.
pub(super) fn lines<R: Rights + 'static>(running: RunningBatch<R>) -> Response<Body> {
    let running = Arc::new(running);
    // Room for all, so that a slow reader does not delay the calls.
    let (sender, outcomes) = mpsc::channel(running.batch.calls.len());
    let task = tokio::spawn({
        let running = running.clone();
        async move {
            running
                .run(|call, outcome| {
                    // The receiver is gone only when the caller is.
                    let _ = sender.try_send((call, outcome));
                })
                .await;
        }
    });
    let state = (running, outcomes, Summary::default(), AbortOnDropHandle::new(task));
    let lines = stream::unfold(state, |(running, mut outcomes, mut summary, task)| async {
        if summary.is_written {
            return None;
        }
        let mut piece = vec![];
        match outcomes.recv().await {
            Some(first) => {
                let mut next = Some(first);
                while let Some((call, outcome)) = next {
                    summary.count(&outcome);
                    outcome.write(&running.batch.calls[call].id, &mut piece);
                    piece.push(b'\n');
                    next = if piece.len() < PIECE_LEN { outcomes.try_recv().ok() } else { None };
                }
            }
            None => piece = summary.write(),
        }
        let piece = Ok::<_, std::io::Error>(Bytes::from(piece));
        Some((piece, (running, outcomes, summary, task)))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}

/// The last line: the number of calls by outcome.
#[derive(Default)]
struct Summary {
    ok: usize,
    tool_errors: usize,
    errors: usize,
    is_written: bool,
}

impl Summary {
    fn count(&mut self, outcome: &ItemOutcome) {
        match outcome.kind() {
            OutcomeKind::Ok => self.ok += 1,
            OutcomeKind::ToolError => self.tool_errors += 1,
            OutcomeKind::Error => self.errors += 1,
        }
    }

    fn write(&mut self) -> Vec<u8> {
        self.is_written = true;
        let Self { ok, tool_errors, errors, .. } = self;
        let calls = *ok + *tool_errors + *errors;
        format!(
            "{{\"summary\":{{\"calls\":{calls},\"ok\":{ok},\"tool_error\":{tool_errors},\
             \"error\":{errors}}}}}\n"
        )
        .into_bytes()
    }
}
