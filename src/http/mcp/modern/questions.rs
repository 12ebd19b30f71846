//! Questions of legacy servers to modern clients. Such a server asks in the middle of a call. The
//! gateway answers the request with `input_required`, and parks the call. The client's next
//! request brings the answer, and the call goes on with it.
//!
//! ```text
//! request ──▶ call ──▶ server asks ──▶ ParkedCall ──▶ input_required, with a sealed state
//!                                         │
//! request with the state and the answer ──┘ (taken once) ──▶ server answers ──▶ result
//! ```
//!
//! The state is sealed for the tenant and the request, and names the replica that has the call. A
//! parked call ends at its deadline, as any other.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::request_state::RequestState;
use crate::backend::changes::recipients::ServerRequest;
use crate::backend::connection::call_notifications::{CallNotifications, NotificationSender};
use crate::common::ids::{CallId, ServerId, TenantId};
use crate::common::tenant_quota::QuotaPermit;
use crate::gateway::{CallError, Executed, Reply};
use crate::http::AppState;
use crate::http::mcp::McpRequest;
use crate::http::mcp::forward::ForwardedCall;
use crate::http::mcp::response::CallResponse;
use crate::http::mcp::rpc::{self, RpcError};
use crate::http::mcp::session::Replica;
use crate::http::mcp::translate::Translation;
use crate::http::sse;
use crate::protocol::jsonrpc::framing::{DEPTH_MAX, deeper_than};
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::mcp::params::{Params, ParamsError};
use crate::protocol::mcp::questions::{Askable, input_required};
use crate::protocol::mcp::{Era, meta, method};
use crate::registry::Server;
use crate::tenants::limits::Admission;

/// The name of a question in `inputRequests`, and of its answer.
const QUESTION: &str = "question";
/// How much longer the end of a call may take than its deadline.
const GRACE: Duration = Duration::from_secs(5);

type Outcome = Result<Reply, CallError>;

/// Returns the questions that the client can be asked during a call, if its server asks callers.
pub(in crate::http::mcp) fn asks(
    request: &McpRequest<'_>,
    method: &str,
    server: &Server,
) -> Option<Askable> {
    let may_ask = [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ];
    if request.era == Era::Legacy || !server.asks_callers() || !may_ask.contains(&method) {
        return None;
    }
    let capabilities = request.params.meta(meta::CLIENT_CAPABILITIES);
    let askable = Askable::of(capabilities.map_or("{}", RawValue::get));
    askable.can_answer().then_some(askable)
}

/// A call in a task of its own, which ends with the last of those who wait for it.
pub(crate) struct OpenCall {
    id: CallId,
    tenant: TenantId,
    server: ServerId,
    until: Instant,
    ended: Arc<Ended>,
    _task: AbortOnDropHandle<()>,
}

/// The outcome of a call, until somebody takes it.
#[derive(Default)]
struct Ended {
    progress: Mutex<Progress>,
    changed: Notify,
}

#[derive(Default)]
enum Progress {
    #[default]
    Runs,
    Over(Outcome),
    /// Over, and somebody has the outcome.
    Taken,
}

impl Ended {
    fn set(&self, outcome: Outcome) {
        *self.progress.lock() = Progress::Over(outcome);
        self.changed.notify_one();
    }

    fn take(&self) -> Option<Outcome> {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::Taken) {
            Progress::Over(outcome) => Some(outcome),
            before => {
                *progress = before;
                None
            }
        }
    }
}

impl OpenCall {
    /// Waits for the outcome, and takes it.
    async fn outcome(&self) -> Outcome {
        let wait = async {
            loop {
                let changed = self.ended.changed.notified();
                if let Some(outcome) = self.ended.take() {
                    return outcome;
                }
                changed.await;
            }
        };
        tokio::select! {
            biased;
            outcome = wait => outcome,
            // Not reached unless the task has failed.
            () = sleep_until(self.until) => {
                Err(CallError::DeadlineExceeded { executed: Executed::Unknown })
            }
        }
    }

    fn is_over(&self) -> bool {
        !matches!(*self.ended.progress.lock(), Progress::Runs)
    }
}

/// Puts questions to the client of one request.
pub(in crate::http::mcp) struct QuestionDesk {
    app: Arc<AppState>,
    call: Arc<OpenCall>,
    askable: Askable,
}

impl QuestionDesk {
    /// Parks the call, and returns the message that asks the client. Refuses a question that the
    /// client cannot be asked.
    pub(in crate::http::mcp) fn put(
        &self,
        question: ServerRequest,
        translation: &Translation,
        notifications: &mut CallNotifications,
    ) -> Option<Bytes> {
        let refuse = |why: &str| {
            question.refuse(&format!("the caller cannot be asked: {why}"));
            None
        };
        let params = question.params.as_deref().unwrap_or(b"{}");
        let Ok(params) = std::str::from_utf8(params) else { return refuse("it is not UTF-8") };
        if let Err(why) = self.askable.check(&question.method, Some(params)) {
            return refuse(why);
        }
        let state = translation.state.as_ref().filter(|_| !self.call.is_over());
        let Some(state) = state else { return refuse("the call has ended") };
        let Some(permit) = self.app.question_quota.take(&state.tenant) else {
            return refuse("too many questions of its tenant's are open");
        };
        let place =
            ParkedRef { key: rand::random(), replica: Replica::this(self.app.cluster.as_ref()) };
        let sealed = state.seal_call(&serde_json::to_vec(&place).expect("plain data"));
        let result = input_required(QUESTION, &question.method, params, &sealed);
        // The rest of the call's notifications go to the next request.
        let (_, none) = NotificationSender::new(None, None);
        let notifications = std::mem::replace(notifications, none);
        let call = self.call.clone();
        let parked = Parked { call, notifications, question, _permit: permit };
        self.app.parked_calls.park(place.key, parked);
        Some(rpc::result(&translation.id, &result))
    }
}

/// Names a parked call, in a sealed state.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::http::mcp) struct ParkedRef {
    #[serde(rename = "k")]
    key: u128,
    #[serde(rename = "at")]
    replica: Option<Replica>,
}

impl ParkedRef {
    pub(in crate::http::mcp) fn open(state: &RequestState, sealed: &str) -> Option<Box<Self>> {
        serde_json::from_slice(&state.open_call(sealed)?).ok()
    }
}

/// Calls whose clients were asked and have not come back yet. As many as `question_quota` allows.
#[derive(Default)]
pub(crate) struct ParkedCalls(Mutex<HashMap<u128, ParkedCall>>);

struct ParkedCall {
    parked: Parked,
    /// Removes the call when it must have ended.
    _expiry: AbortOnDropHandle<()>,
}

/// A call with the question that its client was asked.
struct Parked {
    call: Arc<OpenCall>,
    notifications: CallNotifications,
    question: ServerRequest,
    _permit: QuotaPermit,
}

impl ParkedCalls {
    fn park(self: &Arc<Self>, key: u128, parked: Parked) {
        let (calls, until) = (Arc::downgrade(self), parked.call.until);
        let expiry = AbortOnDropHandle::new(tokio::spawn(async move {
            sleep_until(until).await;
            drop(Weak::upgrade(&calls).and_then(|calls| calls.take(key)));
        }));
        self.0.lock().insert(key, ParkedCall { parked, _expiry: expiry });
    }

    /// Returns whether a call waits for its client at a tenant's process of a server. The process
    /// takes no other call meanwhile.
    pub(in crate::http::mcp) fn hold(&self, tenant: &TenantId, server: &ServerId) -> bool {
        let parked = self.0.lock();
        let mut calls = parked.values().map(|it| &it.parked.call);
        calls.any(|call| call.tenant == *tenant && call.server == *server)
    }

    /// Takes a call. There is one answer, so it is taken once.
    fn take(&self, key: u128) -> Option<Parked> {
        self.0.lock().remove(&key).map(|it| it.parked)
    }
}

/// Makes a call during which its client may be asked, or goes on with one.
pub(super) async fn forward(
    request: &McpRequest<'_>,
    forwarded: ForwardedCall,
    admission: Admission,
) -> Result<Response<Body>, RpcError> {
    let ForwardedCall { call, translation, notifications, asks, parked, .. } = forwarded;
    let app = request.http.app.clone();
    let (open, notifications) = match parked {
        Some(place) => {
            // The call that goes on has a permit of its own.
            drop(admission);
            let other = place.replica.as_ref().and_then(|it| it.other(app.cluster.as_ref()));
            if let Some(peer) = other.filter(|_| !request.http.is_forwarded) {
                let deadline = call.deadline_max.unwrap_or(call.deadline);
                return request
                    .http
                    .forward_or(&peer, deadline, Some(request.id), unknown_state)
                    .await;
            }
            let answer = answer_of(&request.params)?;
            let taken = app.parked_calls.take(place.key).ok_or_else(unknown_state)?;
            let Parked { call, notifications, question, .. } = taken;
            question.answer(Ok(answer));
            (call, notifications)
        }
        None => {
            let notifications = notifications.expect("calls with questions have a listener");
            let (id, until) = (call.id, call.deadline_max.unwrap_or(call.deadline) + GRACE);
            let (tenant, server) = (request.caller.tenant.id.clone(), call.server.id().clone());
            let ended = Arc::<Ended>::default();
            let (caller, app, at_end) = (request.caller.clone(), app.clone(), ended.clone());
            let task = tokio::spawn(async move {
                at_end.set(app.gateway.call(&caller, admission, &call).await);
            });
            let task = AbortOnDropHandle::new(task);
            let open = OpenCall { id, tenant, server, until, ended, _task: task };
            (Arc::new(open), notifications)
        }
    };
    let id = open.id;
    let waiting = open.clone();
    let outcome = async move { Some(waiting.outcome().await) };
    let desk = QuestionDesk { app, call: open, askable: asks.unwrap_or_default() };
    let response = CallResponse::new(outcome, notifications, translation).with_desk(desk);
    Ok(response.respond(id).await.unwrap_or_else(sse::respond_empty))
}

/// Returns the client's answer to the question: a JSON object.
fn answer_of<'a>(params: &Params<'a>) -> Result<&'a RawValue, RpcError> {
    let answers = params.get("inputResponses").ok_or(ParamsError::Missing("inputResponses"))?;
    let wrong = || {
        let expected = "an object with the answer to `question`, an object";
        RpcError::from(ParamsError::WrongType { at: "params.inputResponses".into(), expected })
    };
    let members = Members::of_caller(answers.get()).map_err(|_| wrong())?;
    let answer = members.get(QUESTION).ok_or_else(wrong)?;
    let is_fine = answer.get().starts_with('{') && !deeper_than(answer.get().as_bytes(), DEPTH_MAX);
    if is_fine { Ok(answer) } else { Err(wrong()) }
}

/// Returns the error for a state that leads nowhere, or no longer.
pub(in crate::http::mcp) fn unknown_state() -> RpcError {
    RpcError::invalid_params(
        "`params.requestState` was not given out for this request, has expired, or was answered \
         before: start again without it",
    )
}
