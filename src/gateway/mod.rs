//! The path of a call, from whoever calls to the backend and back. REST and MCP are two front ends of it;
//! nothing else reaches a backend.

mod accounting;
mod attempt;
mod causes;
mod error;
mod request;
mod retry;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::accounting::Record;
use self::attempt::Sending;
pub use self::error::{CallError, Executed};
pub use self::request::{Ask, Call, ToolName};
use self::retry::{Attempts, Tried};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, NotReady, Ready};
use crate::protocol::mcp::Era;
use crate::protocol::mcp::results::ResultKind;
use crate::registry::{BackendRef, NoBackend, Registry, Server, SessionOwner};
use crate::telemetry::metrics::Metrics;
use crate::tenants::Tenant;
use crate::tenants::limits::{Admission, Standing};

/// Who calls.
#[derive(Clone)]
pub struct Caller {
    /// Whose limits and rights apply.
    pub tenant: Arc<Tenant>,
    /// The MCP session it calls in, if any: servers that are not shared belong to one.
    pub session: Option<SessionOwner>,
    /// How long what it asks for may last.
    pub rights: Rights,
}

/// How long a caller's rights are what they were. Whatever lasts longer is to be asked for again.
#[derive(Clone)]
pub struct Rights {
    /// Cancelled when they have changed.
    pub gone: CancellationToken,
    /// When they end by themselves.
    pub until: Option<Instant>,
}

impl Rights {
    /// Waits until they are no longer what they were.
    pub async fn over(&self) {
        let ended = async {
            match self.until {
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.gone.cancelled() => {}
            () = ended => {}
        }
    }
}

impl Caller {
    /// Whoever calls for a tenant, in no session.
    pub fn of(tenant: Arc<Tenant>) -> Self {
        let rights = Rights { gone: tenant.gone.clone(), until: None };
        Self { tenant, session: None, rights }
    }
}

/// A server's result.
#[derive(Debug)]
pub struct Reply {
    /// The result object as the server wrote it.
    pub result: Bytes,
    /// What it says about itself.
    pub kind: ResultKind,
    /// Whether it says so, as modern servers must.
    pub is_typed: bool,
    /// How the server speaks.
    pub era: Era,
    /// How long the call waited.
    pub queue: Duration,
    /// How long the server took.
    pub backend: Duration,
    /// Where the tenant stands with its rates.
    pub standing: Standing,
    /// How many attempts it took.
    pub attempts: u32,
}

/// The gateway proper.
pub struct Gateway {
    registry: Registry,
    metrics: Metrics,
}

impl Gateway {
    /// A gateway before these servers.
    pub fn new(registry: Registry, metrics: Metrics) -> Self {
        Self { registry, metrics }
    }

    /// The servers, whoever may use them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The servers that are there for a caller.
    pub fn servers(&self, caller: &Caller) -> impl Iterator<Item = Arc<Server>> {
        let servers = self.registry.servers().into_iter();
        servers.filter(|server| caller.tenant.sees(server.id().as_str()))
    }

    /// The server that a caller means by `id`. One it may not use does not exist for it.
    pub fn server(&self, caller: &Caller, id: &str) -> Result<Arc<Server>, CallError> {
        let server = self.registry.get(id).filter(|_| caller.tenant.sees(id));
        server.ok_or_else(|| CallError::ServerNotFound { server: id.to_owned() })
    }

    /// The server's process that a caller uses.
    pub fn backend(&self, caller: &Caller, id: &str) -> Result<BackendRef, CallError> {
        let mut server = self.server(caller, id)?;
        loop {
            match server.backend(&caller.tenant.id, caller.session.as_ref()) {
                // It was replaced after it was found, or the gateway ends.
                Err(NoBackend::Stopped) => {
                    let found = std::mem::replace(&mut server, self.server(caller, id)?);
                    if Arc::ptr_eq(&found, &server) {
                        return Err(CallError::ShuttingDown);
                    }
                }
                process => return Ok(process?),
            }
        }
    }

    /// The same as soon as it runs; `until` says how long that may take.
    pub async fn ready(
        &self,
        caller: &Caller,
        id: &str,
        until: impl Fn(&Backend) -> Instant,
    ) -> Result<(BackendRef, Arc<Ready>), CallError> {
        let mut server = self.backend(caller, id)?;
        loop {
            match server.ready(until(&server)).await {
                Ok(ready) => return Ok((server, ready)),
                Err(NotReady::Stopped) => server = self.successor(caller, id, &server)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The process that has taken the place of one that was stopped, if one has.
    fn successor(
        &self,
        caller: &Caller,
        id: &str,
        stopped: &Arc<Backend>,
    ) -> Result<BackendRef, CallError> {
        let server = self.backend(caller, id)?;
        if Arc::ptr_eq(&server, stopped) { Err(CallError::ShuttingDown) } else { Ok(server) }
    }

    /// One call from admission to its outcome. Dropping the future gives the call up, and it alone.
    pub async fn call(&self, caller: &Caller, call: Call) -> Result<Reply, CallError> {
        let mut record = Record::new(&self.metrics, &caller.tenant, call.arrived, call.size);
        let outcome = self.route(caller, call, &mut record).await;
        record.finish(&outcome);
        outcome
    }

    async fn route(
        &self,
        caller: &Caller,
        call: Call,
        record: &mut Record<'_>,
    ) -> Result<Reply, CallError> {
        if call.deadline <= Instant::now() {
            return Err(CallError::DeadlineExceeded { executed: Executed::No });
        }
        let admission = Arc::new(caller.tenant.limits.enter().await?);
        let mut pass = Pass { admission, standing: None, tried: Tried::default() };
        let outcome = self.at_servers(caller, &call, &mut pass, record).await;
        outcome.map_err(|last| pass.tried.then(last, pass.standing))
    }

    /// The call at the server's process, and at the one that takes its place, if one does.
    async fn at_servers(
        &self,
        caller: &Caller,
        call: &Call,
        pass: &mut Pass,
        record: &mut Record<'_>,
    ) -> Result<Reply, CallError> {
        let mut server = self.backend(caller, &call.server)?;
        loop {
            match at_server(caller, call, &server, pass, record).await {
                // It has not seen this attempt. If another has its place by now, the call goes there.
                Err(CallError::ShuttingDown) => {
                    server = self.successor(caller, &call.server, &server)?;
                }
                outcome => return outcome,
            }
        }
    }
}

/// What a call has with it, wherever it goes: it is counted once, and nothing that was tried is forgotten.
struct Pass {
    /// Shared with the slot that the call has.
    admission: Arc<Admission>,
    /// What was left of the rates.
    standing: Option<Standing>,
    tried: Tried,
}

/// One call at one server, as often as it may be tried there.
async fn at_server(
    caller: &Caller,
    call: &Call,
    server: &Arc<Backend>,
    pass: &mut Pass,
    record: &mut Record<'_>,
) -> Result<Reply, CallError> {
    let _in_flight = record.at_server(server);
    let Tenant { id: tenant, policy, limits, .. } = &*caller.tenant;
    let line_up = || server.queue().line_up(tenant, policy.weight, call.size);
    let mut in_line = line_up();
    let ready = in_line.first(server.ready(call.deadline)).await??;
    let tool = call.find_tool(caller, &ready)?;
    match (&tool, &call.ask) {
        (Some(tool), _) => record.at_tool(tool),
        (None, Ask::Method(method)) => record.at_method(method),
        (None, Ask::Tool { .. }) => unreachable!("a tool that is not found is an error"),
    }

    let tool_name = tool.as_deref().map(Tool::name);
    if pass.standing.is_none() {
        let admission = Arc::get_mut(&mut pass.admission).expect("no slot has it yet");
        pass.standing = Some(limits.admit(admission, &call.server, tool_name).await?);
    }
    let (tool, admission) = (tool.as_deref(), pass.admission.clone());
    let sending = Sending { server, tenant, call, tool, admission };
    let mut attempts = Attempts::new(server, tool, call.deadline, &mut pass.tried)?;
    loop {
        match sending.attempt(in_line, &mut attempts).await {
            Ok(sent) => {
                return sent.into_reply(call, &mut pass.standing, attempts.count()).await;
            }
            Err(error) => match attempts.again(&error) {
                Some(at) => sleep_until(at).await,
                None => return Err(error),
            },
        }
        in_line = line_up();
    }
}
