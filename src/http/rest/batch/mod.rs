//! Makes many calls in one request: `POST /v1/batch`.
//!
//! - `answer`: the response: all outcomes together, or one line each
//! - [`kept`]: asynchronous batches: `/v1/batches/{id}`

mod answer;
pub(crate) mod kept;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use tokio::time::{Instant, sleep};

use super::asked::{Asked, give_back_request_id, request_id_header, tags};
use crate::calls::Details;
use crate::calls::batch::outcome::Problem;
use crate::calls::batch::request::Batch;
use crate::calls::batch::{Options, Rights, RunningBatch};
use crate::gateway::{CallError, Caller, Held};
use crate::http::auth::Authenticated;
use crate::http::body;
use crate::http::error::{HttpError, HttpResult, item_problem};
use crate::http::headers::{accepts, fairness_key, trace_of};
use crate::http::state::AppState;
use crate::tenants::limits::{Cost, LimitRefusal};

/// The largest body of a batch.
const BODY_MAX: usize = 8 * 1024 * 1024;

/// The shortest pause of a batch that waits for its tenant's rate: several may.
const PAY_PAUSE: Duration = Duration::from_millis(50);

/// The rights of the caller of a request that is being answered.
struct RequestRights {
    app: Arc<AppState>,
    /// The request's head, to authenticate the caller again if its rights change meanwhile.
    head: Parts,
    caller: Caller,
    /// Counts the bytes of the request until the batch has ended.
    _held: Held,
}

/// Charges the batch before it is taken apart: the first of its calls is paid with that. Nobody
/// knows yet whether its calls may wait for the tenant's rate, so it waits itself for a while.
async fn pay(caller: &Caller, until: Instant) -> Result<(), CallError> {
    loop {
        match caller.tenant.admit(Cost::KeptCall).await {
            Ok(_) => return Ok(()),
            Err(LimitRefusal::RateLimited { retry_after, .. })
                if Instant::now() + retry_after < until =>
            {
                sleep(retry_after.max(PAY_PAUSE)).await;
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
}

impl Rights for RequestRights {
    async fn caller(&self) -> Result<Caller, Problem> {
        if self.caller.credential.has_ended() {
            let mut head = self.head.clone();
            let caller = Authenticated::from_request_parts(&mut head, &self.app).await;
            return caller
                .map(|Authenticated(caller)| caller)
                .map_err(|it| item_problem(&it, None));
        }
        Ok(self.caller.clone())
    }
}

/// Runs a batch. The answer has all outcomes in the order of the request, or, as NDJSON, a line for
/// each call when it ends.
pub(crate) async fn run_batch(
    State(app): State<Arc<AppState>>,
    caller: Result<Authenticated, HttpError>,
    request: Request<Body>,
) -> Response<Body> {
    let request_id = request_id_header(request.headers());
    let response = answer(app, caller, request).await;
    let mut response = response.unwrap_or_else(IntoResponse::into_response);
    give_back_request_id(request_id, &mut response);
    response
}

async fn answer(
    app: Arc<AppState>,
    caller: Result<Authenticated, HttpError>,
    request: Request<Body>,
) -> HttpResult {
    let Authenticated(caller) = caller?;
    let as_lines = accepts(request.headers(), answer::NDJSON);
    Ok(match read(app, caller, request).await? {
        Asking::Answer(running) if as_lines => answer::lines(*running),
        Asking::Answer(running) => answer::whole(*running).await,
        Asking::Accept(batch) => batch.accept().await?,
    })
}

/// A request that was read: its caller waits for the answer, or asks for it later.
enum Asking {
    Answer(Box<RunningBatch<RequestRights>>),
    Accept(Box<kept::AcceptableBatch>),
}

async fn read(
    app: Arc<AppState>,
    caller: Caller,
    request: Request<Body>,
) -> Result<Asking, HttpError> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();
    let (asked, tags) = (Asked::read(&head.headers)?, tags(&head.headers)?);
    if asked.callback.is_some() {
        let message = "`Trunkline-Callback` is for single calls: ask `GET /v1/batches/{id}/result`";
        return Err(HttpError::invalid(message));
    }
    let options = Options {
        key: asked.key,
        details: Details {
            labels: tags.labels,
            request_id: tags.request_id,
            fairness_key: fairness_key(&head.headers)?,
            trace: trace_of(&head.headers),
            ..Details::default()
        },
        tool_errors_fail: asked.tool_errors_fail,
        wait: asked.prefer.wait,
    };
    let body_deadline = arrived + body::TIMEOUT;
    let read = body::read_for(&caller, &head.headers, body, BODY_MAX, body_deadline);
    let (body, held) = read.await?;
    pay(&caller, body_deadline).await?;
    let (tenant, calls_max) = (&caller.tenant, app.batch.max_calls as usize);
    let parse = || Batch::parse(&body, calls_max);
    let parsed = app.gateway.offload().in_place(&tenant.long_work, body.len(), parse).await;
    let mut batch = parsed.map_err(|error| HttpError::InvalidRequest(error.to_string()))?;
    if asked.prefer.respond_async {
        let batch = kept::AcceptableBatch { app, caller, body, _held: held, options };
        return Ok(Asking::Accept(Box::new(batch)));
    }
    batch.limit_concurrency(&caller.tenant);
    let calls = app.calls.clone();
    let rights = RequestRights { app, head, caller, _held: held };
    let running = RunningBatch::new(&calls, rights, batch, options, arrived);
    Ok(Asking::Answer(Box::new(running)))
}
