//! The path of a call, from the front end to the backend and back. REST and MCP are two front ends
//! of this one path; no other call reaches a backend.
//!
//! ```text
//! Tenant::admit ── Gateway::call ── dispatch ── call_backend ──┬── Attempt::run ──▶ reply
//! (permit, rate;   (deadline)       (which      (tool, narrow  │   (slot, instance,
//!  in the front                      backend)    limits)       │    frame, answer)
//!  end)                                                        └── Attempts::next: again, or the
//!                                                                  error
//! ```

mod accounting;
mod attempt;
mod call;
mod caller_tokens;
mod convert;
mod ended;
mod error;
mod executed;
mod explain;
pub mod extension;
mod skills;
mod steps;
mod toolsets;
mod unsent;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use self::accounting::Accounting;
use self::attempt::{Attempt, AttemptHistory, Attempts};
pub use self::call::{
    BeginMark, Call, Caller, CredentialLifetime, MirroredHeaders, Operation, ToolName,
    check_timeout,
};
use self::caller_tokens::EXCHANGE_MAX;
pub use self::ended::RefusedCall;
pub use self::error::{CallError, Executed};
use self::unsent::hold_answer;
pub use self::unsent::{Held, RESPONSE_COST, check_room, hold_kept, hold_response, no_room};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, NotReady, Ready, TenantQuarantined, TokenSource};
use crate::common::ids::ToolsetId;
use crate::common::offload::Offload;
use crate::config::{Config, ToolsetConfig};
use crate::events::event::ArrivedCall;
use crate::events::{Event, Events, Kinds, Sampler};
use crate::protocol::mcp::Era;
use crate::protocol::mcp::results::ResultKind;
use crate::registry::{BackendRef, NoBackend, Registry, Server};
use crate::telemetry::metrics::Metrics;
use crate::tenants::Tenant;
use crate::tenants::limits::{Admission, Cost, RateStatus};
use crate::toolsets::Toolsets;

/// A server's result.
#[derive(Debug)]
pub struct Reply {
    /// The result object, byte for byte as the server wrote it.
    pub result: Bytes,
    /// Counts the result's bytes until the caller has taken them.
    pub held: Held,
    pub kind: ResultKind,
    /// True if the result names its own type, as modern servers must.
    pub is_typed: bool,
    /// The era that the server speaks.
    pub era: Era,
    /// The time from arrival until the frame was sent.
    pub queue: Duration,
    /// The time from the frame until the answer.
    pub backend: Duration,
    pub rate_status: RateStatus,
    pub attempts: u32,
    /// The run of the process that answered; 0 for a server with a `url`.
    pub run: u64,
}

pub struct Gateway {
    registry: Registry,
    toolsets: Toolsets,
    metrics: Metrics,
    sampler: Sampler,
}

impl Gateway {
    /// Returns a gateway that traces nothing.
    pub fn new(registry: Registry, metrics: Metrics) -> Self {
        Self { registry, toolsets: Toolsets::default(), metrics, sampler: Sampler::Off }
    }

    pub fn with_sampler(self, sampler: Sampler) -> Self {
        Self { sampler, ..self }
    }

    pub fn with_toolsets(self, configured: &BTreeMap<ToolsetId, ToolsetConfig>) -> Self {
        Self { toolsets: Toolsets::new(configured), ..self }
    }

    /// Returns all servers, without asking who may use them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Makes these the servers and toolsets.
    pub fn apply(&self, config: &Config) {
        // First: those who follow the servers look at their toolset then.
        self.toolsets.apply(&config.toolsets);
        self.registry.apply(&config.servers);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Decides which requests are traced.
    pub fn sampler(&self) -> Sampler {
        self.sampler
    }

    pub fn offload(&self) -> &Offload {
        self.registry.offload()
    }

    pub fn events(&self) -> &Events {
        self.registry.events()
    }

    /// Returns the servers that the caller may use.
    pub fn servers(&self, caller: &Caller) -> impl Iterator<Item = Arc<Server>> {
        let servers = self.registry.servers().into_iter();
        servers.filter(|server| caller.sees(server.id().as_str()))
    }

    /// Returns the server with this id. A server that the caller may not use does not exist for it.
    pub fn server(&self, caller: &Caller, id: &str) -> Result<Arc<Server>, CallError> {
        let server = self.registry.get(id).filter(|_| caller.sees(id));
        server.ok_or_else(|| CallError::ServerNotFound { server: id.to_owned() })
    }

    /// Returns the backend that serves this caller; starts one if the server is not shared.
    pub fn backend(
        &self,
        caller: &Caller,
        mut server: Arc<Server>,
    ) -> Result<BackendRef, CallError> {
        loop {
            match server.backend(&caller.tenant, caller.session.as_ref()) {
                // A rollover replaced the server after it was looked up, or the gateway shuts down.
                Err(NoBackend::Stopped) => {
                    let current = self.server(caller, server.id().as_str())?;
                    if Arc::ptr_eq(&current, &server) {
                        return Err(CallError::ShuttingDown);
                    }
                    server = current;
                }
                backend => return Ok(backend?),
            }
        }
    }

    /// Waits until the caller's backend is ready, at most until the time that `until` names.
    pub async fn ready(
        &self,
        caller: &Caller,
        server: Arc<Server>,
        until: impl Fn(&Backend) -> Instant,
    ) -> Result<(BackendRef, Arc<Ready>), CallError> {
        if server.wants_caller_tokens() {
            self::caller_tokens::exchange(caller, &server, Instant::now() + EXCHANGE_MAX).await?;
        }
        let mut backend = self.backend(caller, server.clone())?;
        loop {
            match backend.ready(until(&backend)).await {
                Ok(ready) => return Ok((backend, ready)),
                Err(NotReady::Stopped) => backend = self.next_backend(caller, &server, &backend)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits like [`Self::ready`]. If that starts a process of the caller's own, its tenant is
    /// charged a call.
    pub async fn ready_or_start(
        &self,
        caller: &Caller,
        server: Arc<Server>,
        until: impl Fn(&Backend) -> Instant,
    ) -> Result<(BackendRef, Arc<Ready>), CallError> {
        let _start = match caller.must_start(&server) {
            true => Some(caller.tenant.admit(Cost::Call).await?),
            false => None,
        };
        self.ready(caller, server, until).await
    }

    /// Returns the backend that replaced `stopped` in a rollover.
    fn next_backend(
        &self,
        caller: &Caller,
        server: &Server,
        stopped: &Arc<Backend>,
    ) -> Result<BackendRef, CallError> {
        let server = self.server(caller, server.id().as_str())?;
        let backend = self.backend(caller, server)?;
        if Arc::ptr_eq(&backend, stopped) { Err(CallError::ShuttingDown) } else { Ok(backend) }
    }

    /// Makes one admitted call, to its outcome. Dropping the future cancels that call alone.
    pub async fn call(
        &self,
        caller: &Caller,
        admission: Admission,
        call: &Call,
    ) -> Result<Reply, CallError> {
        self.events().tell(Kinds::STEPS, || arrived(caller, call));
        let mut accounting = Accounting::new(self, caller, call);
        let outcome = self.start(caller, admission, call, &mut accounting).await;
        accounting.finish(&outcome);
        outcome
    }

    /// Has the call answered if there is time.
    async fn start(
        &self,
        caller: &Caller,
        mut admission: Admission,
        call: &Call,
        accounting: &mut Accounting<'_>,
    ) -> Result<Reply, CallError> {
        let rate_status = admission.take_rate_status();
        if call.deadline <= Instant::now() {
            let error = CallError::DeadlineExceeded { executed: Executed::No };
            return Err(error.with_rate_status(rate_status));
        }
        if let Err(error) = check_room(&caller.tenant) {
            return Err(error.with_rate_status(rate_status));
        }
        let (admission, history) = (Arc::new(admission), AttemptHistory::default());
        let mut context = CallContext {
            admission,
            is_admitted: false,
            rate_status,
            history,
            is_moved: false,
            tokens: None,
        };
        let outcome = self.dispatch(caller, call, &mut context, accounting).await;
        outcome.map_err(|last| context.history.into_error(last, context.rate_status))
    }

    /// Returns the backend for the caller's calls, unless they are refused because they kept ending
    /// the server.
    fn backend_for_calls(
        &self,
        caller: &Caller,
        server: Arc<Server>,
        accounting: &mut Accounting<'_>,
    ) -> Result<BackendRef, CallError> {
        let (tenant, backend) = (&caller.tenant.id, self.backend(caller, server)?);
        if let Some(TenantQuarantined { retry_after }) = backend.quarantine_of(tenant) {
            accounting.at_backend(&backend);
            return Err(CallError::TenantQuarantined { retry_after });
        }
        Ok(backend.for_calls_of(tenant))
    }

    /// Finds the backend. If a rollover stops the backend before it has seen the call, or the
    /// tenant's calls go elsewhere by now, the call goes to the next one.
    async fn dispatch(
        &self,
        caller: &Caller,
        call: &Call,
        context: &mut CallContext,
        accounting: &mut Accounting<'_>,
    ) -> Result<Reply, CallError> {
        if call.server.wants_caller_tokens() {
            context.tokens =
                self::caller_tokens::exchange(caller, &call.server, call.deadline).await?;
        }
        let mut backend = self.backend_for_calls(caller, call.server.clone(), accounting)?;
        loop {
            match call_backend(self.events(), caller, call, &backend, context, accounting).await {
                Err(CallError::BackendStopped) => {
                    let server = self.server(caller, call.server.id().as_str())?;
                    let next = self.backend_for_calls(caller, server, accounting)?;
                    if Arc::ptr_eq(&next, &backend) && !std::mem::take(&mut context.is_moved) {
                        return Err(CallError::ShuttingDown);
                    }
                    backend = next;
                }
                outcome => return outcome,
            }
        }
    }
}

/// State that a call keeps when it moves to another backend: it is counted once, and no attempt is
/// forgotten.
struct CallContext {
    /// Shared with the `CallPermits` of each attempt.
    admission: Arc<Admission>,
    /// Whether the narrower limits have admitted the call.
    is_admitted: bool,
    /// The tenant's rates after this call was taken from them.
    rate_status: RateStatus,
    history: AttemptHistory,
    /// Whether the backend has stopped only for this tenant, whose calls go elsewhere.
    is_moved: bool,
    /// The tokens of the caller, if the server wants those.
    tokens: Option<Arc<TokenSource>>,
}

fn arrived(caller: &Caller, call: &Call) -> Event {
    Event::CallArrived(Arc::new(ArrivedCall {
        call: call.id,
        tenant: caller.tenant.id.clone(),
        server: call.server.id().clone(),
        target: call.target().to_owned(),
        tags: call.tags.clone(),
        arrived: call.arrived,
        deadline: call.deadline,
    }))
}

/// Makes the call at one backend, with as many attempts as `Attempts` allows.
async fn call_backend(
    events: &Events,
    caller: &Caller,
    call: &Call,
    backend: &Arc<Backend>,
    context: &mut CallContext,
    accounting: &mut Accounting<'_>,
) -> Result<Reply, CallError> {
    let _in_flight = accounting.at_backend(backend);
    let Tenant { id: tenant, policy, limits, .. } = &*caller.tenant;
    let enqueue = || {
        let entry = backend.queue().enqueue(tenant, policy.weight, call.size);
        entry.keyed(call.fairness_key).of(call)
    };
    let mut entry = enqueue();
    let ready = entry.wait_for(backend.ready(call.deadline)).await??;
    let tool = call.find_tool(caller, &ready)?;
    match &tool {
        Some(tool) => accounting.at_tool(tool),
        None => accounting.at_method(call.operation.method()),
    }

    let tool_name = tool.as_deref().map(Tool::name);
    if !context.is_admitted {
        let admission = Arc::get_mut(&mut context.admission).expect("no attempt holds it yet");
        let server = call.server.id().as_str();
        limits.admit_to(admission, server, tool_name).await?;
        context.rate_status.insert_narrower(admission.take_rate_status());
        context.is_admitted = true;
        call.check_arguments(backend, &caller.tenant, tool.as_deref()).await?;
    }
    let (tool, admission) = (tool.as_ref(), context.admission.clone());
    let tokens = context.tokens.as_ref();
    let attempt = Attempt { events, backend, tenant, call, tool, admission, tokens };
    let own = tool.map(|tool| &**tool);
    let mut attempts = Attempts::new(backend, tenant, own, call.deadline, &mut context.history)?;
    loop {
        match attempt.run(entry, &mut attempts, &mut accounting.steps).await {
            Ok(answer) => {
                let count = attempts.count();
                let offload = backend.offload();
                let held = hold_answer(&caller.tenant, answer.answer(), call.is_kept)?;
                let rate_status = &mut context.rate_status;
                let reply = answer.into_reply(offload, call, held, rate_status, count);
                return match call.operation {
                    Operation::Extension(_) => call.unless_manifest_differs(&ready, reply.await?),
                    _ => reply.await,
                };
            }
            Err(CallError::BackendStopped) if !backend.takes_calls_of(tenant) => {}
            Err(error) => {
                accounting.steps.note_failure(error.code());
                match attempts.next(&error) {
                    Some(at) => sleep_until(at).await,
                    None => return Err(error),
                }
            }
        }
        if !backend.takes_calls_of(tenant) {
            attempts.withdraw();
            context.is_moved = true;
            return Err(CallError::BackendStopped);
        }
        entry = enqueue();
    }
}
