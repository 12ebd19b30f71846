//! The response to a batch: all outcomes as one JSON object, or as NDJSON a line for each call.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::calls::OutcomeKind;
use crate::calls::batch::outcome::ItemOutcome;
use crate::calls::batch::{Rights, RunningBatch};

pub(super) const NDJSON: &str = "application/x-ndjson";
/// Outcomes are written into pieces of about this size.
const PIECE_LEN: usize = 64 * 1024;

/// Runs the batch and responds with all outcomes. If the caller hangs up, the calls are cancelled.
pub(super) async fn whole<R: Rights>(running: RunningBatch<R>) -> Response<Body> {
    let mut outcomes: Vec<Option<ItemOutcome>> = running.batch.calls.iter().map(|_| None).collect();
    running.run(|call, outcome| outcomes[call] = Some(outcome)).await;
    let outcomes: Vec<ItemOutcome> = outcomes.into_iter().flatten().collect();
    let mut response = Response::new(Body::empty());
    if running.options.tool_errors_fail
        && !outcomes.iter().all(|outcome| outcome.kind() == OutcomeKind::Ok)
    {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    let mut outcomes = outcomes.into_iter().enumerate();
    let mut before = "{\"results\":[";
    // Written piece by piece, as the caller reads: results are not copied all at once.
    let pieces = std::iter::from_fn(move || {
        let mut piece = vec![];
        while piece.len() < PIECE_LEN
            && let Some((call, outcome)) = outcomes.next()
        {
            piece.extend_from_slice(before.as_bytes());
            outcome.write(&running.batch.calls[call].id, &mut piece);
            before = ",";
        }
        if piece.is_empty() {
            // The end comes once.
            let end = if before.is_empty() { None } else { Some(Bytes::from_static(b"]}\n")) };
            before = "";
            return end;
        }
        Some(piece.into())
    });
    *response.body_mut() = Body::from_stream(stream::iter(pieces.map(Ok::<_, std::io::Error>)));
    response
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
