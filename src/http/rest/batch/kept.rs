//! Batches that are answered asynchronously: `/v1/batches/{id}`. Another tenant's batch and an
//! unknown one are the same 404.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Extensions, HeaderMap, Response};
use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use super::answer;
use crate::calls::batch::Options;
use crate::calls::batch::accepted::BatchDetails;
use crate::calls::{CallView, Details, Polled, Ran, RecordKind, Refusal, Waited};
use crate::gateway::{Caller, Held};
use crate::http::auth::Authenticated;
use crate::http::body;
use crate::http::error::{HttpError, HttpResult};
use crate::http::rest::calls::{ResultParams, cancelled, charge, id_in, respond, view_json};
use crate::http::rest::kept::{accepted, not_over};
use crate::http::state::AppState;

const PATH: &str = "/v1/batches";

/// A checked batch whose caller does not wait for all of it.
pub(super) struct AcceptableBatch {
    pub(super) app: Arc<AppState>,
    pub(super) caller: Caller,
    pub(super) body: Bytes,
    pub(super) _held: Held,
    pub(super) options: Options,
}

impl AcceptableBatch {
    /// Accepts the batch. Answers with 202, unless it is over within the time that its caller
    /// waits.
    pub(super) async fn accept(self) -> HttpResult {
        let Self { app, caller, body, _held, options } = self;
        let Options { key, details, tool_errors_fail, wait } = options;
        let batch = Some(BatchDetails { key, tool_errors_fail });
        let details = Details { is_async: true, batch, ..details };
        let mut ticket = app.calls.submit_batch(&caller, body, details)?;
        let now = Instant::now();
        let mut waited = ticket.decided(now + body::TIMEOUT).await?;
        if let Some(wait) = wait {
            waited = ticket.wait(now + wait).await?;
        }
        match (waited, ticket.begun()) {
            (Waited::Answered(answer), _) if wait.is_some() => {
                answer::kept(&answer.outcome, &caller.tenant)
            }
            (_, Some((identity, state))) => Ok(accepted(&identity, state, PATH)),
            _ => Err(Refusal::StoreUnavailable { executed: Ran::Unknown }.into()),
        }
    }
}

pub(crate) async fn show(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let id = id_in(path)?;
    charge(&caller).await?;
    Ok(respond(&batch_json(app.calls.view(&caller.tenant, RecordKind::Batch, id).await?)))
}

/// Answers as the batch itself would have been answered; with 202 while it is not over.
pub(crate) async fn result(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    params: Result<Query<ResultParams>, QueryRejection>,
) -> Result<Response<Body>, HttpError> {
    let id = id_in(path)?;
    let wait = params?.0.wait();
    charge(&caller).await?;
    let deadline = Instant::now() + wait;
    let polled = app.calls.result(&caller.tenant, RecordKind::Batch, id, deadline).await?;
    match polled {
        Polled::Ended(outcome) => answer::kept(&outcome, &caller.tenant),
        Polled::Open(view) => Ok(not_over(batch_json(*view).to_string())),
    }
}

/// Cancels the calls that run, and begins no others.
pub(crate) async fn cancel(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let id = id_in(path)?;
    charge(&caller).await?;
    let path = format!("{PATH}/{id}");
    let view = cancelled(&app, &caller, RecordKind::Batch, id, &path, &headers, &extensions);
    Ok(respond(&batch_json(view.await?)))
}

/// Writes a batch's record, which names no tool.
fn batch_json(view: CallView) -> Value {
    let mut json = view_json(view);
    if let Some(members) = json.as_object_mut() {
        for name in ["server", "tool", "attempts"] {
            members.remove(name);
        }
    }
    json
}
