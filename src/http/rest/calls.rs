//! Calls by their id: `/v1/calls`. Those that are kept, and failures, refusals and slow ones of the
//! last while. Another tenant's call and an unknown one are the same 404.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Extensions, HeaderMap, Method, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::asked::WAIT_MAX;
use super::explain::explain_json;
use super::kept;
use super::recent::{ask_others, record_json};
use crate::calls::{
    CallView, Cancelled, ListQuery, Polled, Ran, RecordKind, Refusal, states_named,
};
use crate::cluster::{Peer, PeerRequest, end_to_end};
use crate::common::ids::CallId;
use crate::gateway::{CallError, Caller};
use crate::http::auth::Authenticated;
use crate::http::auth::store_quota::wait;
use crate::http::error::{HttpError, HttpResult, call_failed};
use crate::http::headers::{CALL_ID, text_value, tool_errors_fail};
use crate::http::replicas::Forwarded;
use crate::http::state::AppState;
use crate::tenants::limits::Cost;

/// Calls in one page: by default, and at most.
const PAGE: u32 = 100;
const PAGE_MAX: u32 = 1000;
/// How long another replica may take to cancel a call.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultParams {
    /// In seconds; 60 at most.
    #[schemars(range(max = 4_294_967_295_u32))]
    wait: Option<u32>,
}

impl ResultParams {
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs(u64::from(self.wait.unwrap_or_default()).min(WAIT_MAX))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    label: Option<String>,
    #[schemars(extend("enum" = ["accepted", "running", "ended"]))]
    state: Option<String>,
    #[schemars(regex(pattern = "^[0-9a-f]{32}$"))]
    before: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
}

pub(crate) async fn show(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let id = id_in(path)?;
    let find = |app: &AppState| Some(record_json(&*app.recent.find(&caller.tenant.id, id)?));
    // The replica that was asked has charged the request, and has looked into the store.
    if extensions.get::<Forwarded>().is_some() {
        return found(find(&app));
    }
    charge(&caller).await?;
    let refusal = match app.calls.view(&caller.tenant, RecordKind::Call, id).await {
        Ok(kept) => return Ok(view(kept)),
        Err(refusal @ (Refusal::NoSuchCall | Refusal::StoreUnavailable { .. })) => refusal,
        Err(refusal) => return Err(refusal.into()),
    };
    if let Some(call) = find(&app) {
        return Ok(respond(&call));
    }
    let _turn = wait(&caller.tenant.store_permits).await?;
    let asked = ask_others(&app, Method::GET, format!("/v1/calls/{id}"), &headers).await;
    asked.ok_or_else(|| refusal.into())
}

/// Explains how the gateway decided about a call.
pub(crate) async fn explain(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let id = id_in(path)?;
    let known = app.recent.find(&caller.tenant.id, id).map(|call| explain_json(&call, false));
    if extensions.get::<Forwarded>().is_some() {
        return found(known);
    }
    // Not to the rate of calls: who has used that up may ask why.
    caller.tenant.admit(Cost::List).await.map_err(CallError::from)?;
    if known.is_some() {
        return found(known);
    }
    let _turn = wait(&caller.tenant.store_permits).await?;
    let asked = ask_others(&app, Method::GET, format!("/v1/calls/{id}/explain"), &headers).await;
    asked.ok_or_else(|| Refusal::NoSuchCall.into())
}

pub(crate) fn found(call: Option<Value>) -> HttpResult {
    call.map(|call| respond(&call)).ok_or_else(|| Refusal::NoSuchCall.into())
}

/// Answers as the call itself was or will be answered; with 202 while it is not over.
pub(crate) async fn result(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    params: Result<Query<ResultParams>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response<Body>, HttpError> {
    let id = id_in(path)?;
    let wait = params?.0.wait();
    let tool_errors_fail = tool_errors_fail(&headers)?;
    charge(&caller).await?;
    let deadline = Instant::now() + wait;
    let polled = app.calls.result(&caller.tenant, RecordKind::Call, id, deadline);
    let mut response = match polled.await {
        Ok(Polled::Ended(outcome)) => {
            let outcome = kept::outcome(&outcome, &caller.tenant, tool_errors_fail);
            outcome.unwrap_or_else(|refusal| call_failed(refusal.into(), id))
        }
        Ok(Polled::Open(view)) => kept::not_over(view_json(*view).to_string()),
        Err(refusal @ Refusal::NoSuchCall) => return Err(refusal.into()),
        Err(refusal) => call_failed(refusal.into(), id),
    };
    response.headers_mut().insert(CALL_ID.clone(), text_value(id.to_string()));
    Ok(response)
}

pub(crate) async fn cancel(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let id = id_in(path)?;
    charge(&caller).await?;
    let path = format!("/v1/calls/{id}");
    let ended = cancelled(&app, &caller, RecordKind::Call, id, &path, &headers, &extensions);
    Ok(view(ended.await?))
}

/// Cancels a record's call or batch, wherever it runs. `path` is its own.
pub(super) async fn cancelled(
    app: &AppState,
    caller: &Caller,
    kind: RecordKind,
    id: CallId,
    path: &str,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<CallView, HttpError> {
    match app.calls.cancel(&caller.tenant, kind, id).await? {
        Cancelled::Ended(ended) => return Ok(*ended),
        // A request that came from a replica goes no further.
        Cancelled::RunsAt(_) if extensions.get::<Forwarded>().is_some() => {}
        Cancelled::RunsAt(peer) => cancel_at(app, &peer, path, headers).await?,
    }
    Ok(app.calls.view(&caller.tenant, kind, id).await?)
}

/// Has another replica cancel a call that it runs, for the same caller.
pub(crate) async fn cancel_at(
    app: &AppState,
    peer: &Peer,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), HttpError> {
    let unknown = || Refusal::StoreUnavailable { executed: Ran::Unknown };
    let cluster = app.cluster.as_ref().ok_or_else(unknown)?;
    let request = PeerRequest {
        method: Method::DELETE,
        path: path.to_owned(),
        headers: end_to_end(headers),
        body: Bytes::new(),
    };
    match timeout(PEER_TIMEOUT, cluster.send(peer, &request)).await {
        // Its record tells the rest.
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => {
            tracing::debug!(replica = %peer.address, %error, "a call could not be cancelled");
            Err(unreachable_replica().into())
        }
        Err(_) => Err(unreachable_replica().into()),
    }
}

fn unreachable_replica() -> CallError {
    let reason = "the replica that runs the call cannot be reached".to_owned();
    CallError::unavailable(reason, PEER_TIMEOUT)
}

/// Lists calls, the latest first; `next` is the `before` of the next page.
pub(crate) async fn list(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    params: Result<Query<ListParams>, QueryRejection>,
) -> HttpResult {
    let Query(params) = params?;
    let limit = params.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(HttpError::invalid(format!("`limit` must be from 1 to {PAGE_MAX}")));
    }
    let unknown = || HttpError::invalid("`state` must be `accepted`, `running` or `ended`");
    let states = match params.state.as_deref() {
        None => vec![],
        Some(name) => states_named(name).ok_or_else(unknown)?,
    };
    let before = params.before.as_deref().map(|text| {
        CallId::parse(text).ok_or_else(|| HttpError::invalid("`before` must be the id of a call"))
    });
    charge(&caller).await?;
    let _turn = wait(&caller.tenant.store_permits).await?;
    let query = ListQuery { label: params.label, states, before: before.transpose()?, limit };
    let calls = app.calls.list(&caller.tenant, query).await?;
    let next = calls.last().filter(|_| calls.len() == limit as usize).map(|call| call.id.clone());
    let calls: Vec<_> = calls.into_iter().map(view_json).collect();
    Ok(respond(&json!({"calls": calls, "next": next})))
}

/// Charges one request to the tenant's rate. No call is counted in flight.
pub(super) async fn charge(caller: &Caller) -> Result<(), CallError> {
    caller.tenant.admit(Cost::KeptCall).await?;
    Ok(())
}

pub(crate) fn id_in(path: Result<Path<String>, PathRejection>) -> Result<CallId, HttpError> {
    let Path(id) = path?;
    CallId::parse(&id).ok_or(HttpError::Kept(Refusal::NoSuchCall))
}

fn view(view: CallView) -> Response<Body> {
    respond(&view_json(view))
}

/// Writes times as others are written.
pub(super) fn view_json(view: CallView) -> Value {
    let mut json = json!(view);
    for name in ["created", "begun", "ended", "expires"] {
        let time = json[name].as_i64().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        json[name] = json!(time);
    }
    json
}

pub(super) fn respond(body: &Value) -> Response<Body> {
    respond_bytes(body.to_string().into())
}

pub(super) fn respond_bytes(json: Bytes) -> Response<Body> {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, json).into_response()
}
