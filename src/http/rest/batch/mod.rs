//! Makes many calls in one request: `POST /v1/batch`.
//!
//! - `call`: makes one call of a batch, as if it had come alone
//! - `outcome`: how a call ended, written as JSON
//! - `answer`: the response: all outcomes together, or one line each

mod answer;
mod call;
mod outcome;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::Request;
use axum::http::request::Parts;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::outcome::HeldBytes;
use crate::backend::queue::FairnessKey;
use crate::calls::batch::request::Batch;
use crate::gateway::Caller;
use crate::http::auth::Authenticated;
use crate::http::body;
use crate::http::error::{HttpError, HttpResult};
use crate::http::headers::{accepts, fairness_key, refuse_key, tool_errors_fail, trace_members};
use crate::http::state::AppState;

/// The largest body of a batch.
const BODY_MAX: usize = 8 * 1024 * 1024;

/// A batch, and what all its calls share.
struct RunningBatch {
    app: Arc<AppState>,
    /// The request's head, to authenticate the caller again if its rights change meanwhile.
    head: Parts,
    caller: Caller,
    batch: Batch,
    /// Members of each call's `_meta`.
    trace: String,
    fairness_key: FairnessKey,
    tool_errors_fail: bool,
    deadline: Instant,
    /// The results that are held for references and for the answer.
    held: Arc<HeldBytes>,
    /// Taken by a call that waits for the tenant's own limits, so that one tries again at a time.
    limit_turn: Semaphore,
    /// The time until which the tenant's own limits refuse calls.
    limited_until: Mutex<Instant>,
}

/// Runs a batch. The answer has all outcomes in the order of the request, or, as NDJSON, a line for
/// each call when it ends.
pub(crate) async fn run_batch(
    State(app): State<Arc<AppState>>,
    caller: Result<Authenticated, HttpError>,
    request: Request<Body>,
) -> HttpResult {
    let Authenticated(caller) = caller?;
    let as_lines = accepts(request.headers(), answer::NDJSON);
    let running = read(app, caller, request).await?;
    Ok(if as_lines { answer::lines(running) } else { answer::whole(running).await })
}

async fn read(
    app: Arc<AppState>,
    caller: Caller,
    request: Request<Body>,
) -> Result<RunningBatch, HttpError> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();
    let fairness_key = fairness_key(&head.headers)?;
    refuse_key(&head.headers)?;
    let tool_errors_fail = tool_errors_fail(&head.headers)?;
    let body_deadline = arrived + body::TIMEOUT;
    let read = body::read_for(&caller, &head.headers, body, BODY_MAX, body_deadline);
    let body = read.await?;
    let len = body.len();
    let calls_max = app.batch.max_calls as usize;
    let parse = move || Batch::parse(&body, calls_max);
    let parsed = app.gateway.offload().run_if_long(len, parse).await;
    let mut batch = parsed.map_err(|error| HttpError::InvalidRequest(error.to_string()))?;
    if let Some(max) = caller.tenant.policy.limit.max_in_flight {
        batch.concurrency = batch.concurrency.min(max as usize);
    }
    Ok(RunningBatch {
        deadline: arrived + batch.timeout,
        held: HeldBytes::new(app.batch.max_results),
        trace: trace_members(&head.headers),
        app,
        head,
        caller,
        batch,
        fairness_key,
        tool_errors_fail,
        limit_turn: Semaphore::new(1),
        limited_until: Mutex::new(arrived),
    })
}

impl RunningBatch {
    /// Returns the caller with the rights that it has now.
    async fn caller(&self) -> Result<Caller, HttpError> {
        if self.caller.credential.has_ended() {
            let Authenticated(caller) =
                Authenticated::from_request_parts(&mut self.head.clone(), &self.app).await?;
            return Ok(caller);
        }
        Ok(self.caller.clone())
    }
}
