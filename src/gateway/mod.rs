//! The path of a call, from whoever calls to the backend and back. REST and MCP are two front ends of it;
//! nothing else reaches a backend.

mod error;
mod record;
mod retry;

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::error::{CallError, Executed};
use self::record::Record;
use self::retry::Attempts;
use crate::backend::during::Listener;
use crate::backend::pending::{Answer, Patience};
use crate::backend::queue::Place;
use crate::backend::tools::Tool;
use crate::backend::{Backend, NotReady, Ready};
use crate::ids::{CallId, TenantId};
use crate::jsonrpc::envelope::ErrorObject;
use crate::jsonrpc::{Frame, METHOD_NOT_FOUND, RawObject};
use crate::limits::{Admission, Standing};
use crate::mcp::Era;
use crate::mcp::requests::CallMeta;
use crate::mcp::results::{ResultHead, ResultKind};
use crate::registry::{Lease, NoProcess, Owner, Registry, Server};
use crate::telemetry::metrics::Metrics;
use crate::tenant::Tenant;

/// What a request other than a tool call takes, as long as nothing better is known.
const TYPICAL: Duration = Duration::from_millis(5);

/// The member of `_meta` that tells a server how many milliseconds a call has left.
const TIMEOUT_META: &str = "trunkline/timeoutMs";

/// Who calls.
#[derive(Clone)]
pub struct Caller {
    /// Whose limits and rights apply.
    pub tenant: Arc<Tenant>,
    /// The MCP session it calls in, if any: servers that are not shared belong to one.
    pub session: Option<Owner>,
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

/// What is called.
pub struct Call {
    /// Names the call in answers and logs.
    pub id: CallId,
    /// The server's id, as the caller wrote it.
    pub server: String,
    /// What is asked of it.
    pub ask: Ask,
    /// Further members of `params`, checked: `,"name":value` each.
    pub others: String,
    /// What goes with it.
    pub meta: CallMeta,
    /// How much memory it takes while it waits, about.
    pub size: usize,
    /// Who hears what the server says meanwhile.
    pub listener: Option<Listener>,
    /// When it came in.
    pub arrived: Instant,
    /// When its answer is no longer of use.
    pub deadline: Instant,
    /// How far progress may move that.
    pub deadline_max: Option<Instant>,
}

/// What is asked of a server.
pub enum Ask {
    /// To run a tool.
    Tool {
        /// Which one.
        name: ToolName,
        /// Checked, otherwise untouched.
        arguments: RawObject,
        /// The headers that repeat arguments, where they must agree.
        mirrored: Option<Vec<(String, Vec<u8>)>>,
    },
    /// Anything else; all its parameters are in [`Call::others`].
    Method(&'static str),
}

/// How a caller names a tool.
pub enum ToolName {
    /// As its server does.
    Own(String),
    /// As it is called where all servers are shown together.
    Exposed(String),
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
    pub fn backend(&self, caller: &Caller, id: &str) -> Result<Lease, CallError> {
        let mut server = self.server(caller, id)?;
        loop {
            match server.backend(&caller.tenant.id, caller.session.as_ref()) {
                // It was replaced after it was found, or the gateway ends.
                Err(NoProcess::Stopped) => {
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
    ) -> Result<(Lease, Arc<Ready>), CallError> {
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
    ) -> Result<Lease, CallError> {
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
        let mut pass = Pass { admission: Arc::new(caller.tenant.limits.enter()?), standing: None };
        let mut server = self.backend(caller, &call.server)?;
        loop {
            match at_server(caller, &call, &server, &mut pass, record).await {
                // It has not seen the call. If another has its place by now, the call goes there.
                Err(error) if matches!(error.last(), CallError::ShuttingDown) => {
                    server = self.successor(caller, &call.server, &server)?;
                }
                outcome => return outcome,
            }
        }
    }
}

/// What a call has of its tenant's limits: counted once, wherever it goes.
struct Pass {
    /// Shared with the slot that the call has.
    admission: Arc<Admission>,
    /// What was left of the rates.
    standing: Option<Standing>,
}

/// One call at one server, as often as it may be tried there.
async fn at_server(
    caller: &Caller,
    call: &Call,
    server: &Arc<Backend>,
    pass: &mut Pass,
    record: &mut Record<'_>,
) -> Result<Reply, CallError> {
    let _visit = server.visit();
    let _in_flight = record.at_server(server);
    let Tenant { id: tenant, policy, limits, .. } = &*caller.tenant;
    let line_up = || server.queue().line_up(tenant, policy.weight, call.size);
    let mut place = line_up();
    let ready = place.first(server.ready(call.deadline)).await??;
    let tool = call.find_tool(caller, &ready)?;
    match (&tool, &call.ask) {
        (Some(tool), _) => record.at_tool(tool),
        (None, Ask::Method(method)) => record.at_method(method),
        (None, Ask::Tool { .. }) => unreachable!("a tool that is not found is an error"),
    }

    let tool_name = tool.as_deref().map(Tool::name);
    let standing = match &pass.standing {
        Some(standing) => standing.clone(),
        None => {
            let admission = Arc::get_mut(&mut pass.admission).expect("no slot has it yet");
            pass.standing.insert(limits.admit(admission, &call.server, tool_name).await?).clone()
        }
    };
    let (tool, admission) = (tool.as_deref(), pass.admission.clone());
    let sending = Sending { server, tenant, call, tool, admission };
    let mut attempts = Attempts::new(server, tool, call.deadline);
    loop {
        match sending.attempt(place, &mut attempts).await {
            Ok(sent) => {
                let reply = sent.into_reply(call, standing, attempts.count);
                return reply.map_err(|error| error.after(attempts.count));
            }
            Err(error) => match attempts.again(&error) {
                Some(at) => sleep_until(at).await,
                None => return Err(error.after(attempts.count)),
            },
        }
        place = line_up();
    }
}

/// A call on its way to its server.
struct Sending<'a> {
    server: &'a Backend,
    tenant: &'a TenantId,
    call: &'a Call,
    tool: Option<&'a Tool>,
    /// Kept until the server is done with the call, whoever still waits for the answer.
    admission: Arc<Admission>,
}

/// What came back.
struct Sent {
    answer: Answer,
    era: Era,
    queue: Duration,
    backend: Duration,
}

impl Sending<'_> {
    /// Waits for a slot, and has one copy of the server answer.
    async fn attempt(
        &self,
        place: Place<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Result<Sent, CallError> {
        let Self { server, tool, call, .. } = self;
        let deadline = attempts.deadline();
        let estimate = tool.map_or(TYPICAL, Tool::typical);
        let mut permit = place.slot(estimate, deadline).await?;
        let lease = server.place(attempts.avoid, deadline).await?;
        let ready = lease.copy().ready.clone();
        attempts.avoid = Some(lease.copy().number);
        // This copy may have changed it by now, whatever the others have.
        let own = tool.and_then(|tool| ready.tools.get(tool.name()));
        call.must_not_be_held(own.map(|tool| &**tool).or(*tool))?;
        let measured = server.measure(&lease, tool.map_or("", Tool::name));
        permit.carry((lease, self.admission.clone()));

        let sent = Instant::now();
        let queue = sent.duration_since(call.arrived);
        server.metrics().queue_seconds.observe(queue.as_secs_f64());
        let ticket =
            ready.connection.register(self.tenant.clone(), call.id, deadline, Some(permit))?;
        // Before the frame is sent: what the server says first must be heard too.
        if let Some(listener) = &call.listener {
            ticket.listen(listener.clone());
        }
        if let Some(until) = call.deadline_max {
            ticket.be_patient(Patience { step: server.timeout(), until });
        }
        let meta = self.meta(deadline);
        let headers = call.headers(&ready, *tool)?;
        ticket.send_with(call.frame(ticket.id(), &ready, *tool, &meta), headers)?;
        let answer = ticket.answer().await?;
        measured.answered();
        let backend = sent.elapsed();
        if let Some(tool) = tool {
            tool.note_time(backend);
        }
        Ok(Sent { answer, era: ready.dialect.version().era(), queue, backend })
    }

    /// What goes with the call; for servers that want to know, also how long they have.
    fn meta(&self, deadline: Instant) -> Cow<'_, CallMeta> {
        let meta = &self.call.meta;
        if !self.server.config().tell_deadline {
            return Cow::Borrowed(meta);
        }
        let left = deadline.duration_since(Instant::now()).as_millis();
        let others = format!("{},\"{TIMEOUT_META}\":{left}", meta.others);
        Cow::Owned(CallMeta { others, ..meta.clone() })
    }
}

impl Sent {
    fn into_reply(
        self,
        call: &Call,
        standing: Standing,
        attempts: u32,
    ) -> Result<Reply, CallError> {
        let Self { answer, era, queue, backend } = self;
        let (result, ResultHead { kind, is_typed }) = read_answer(answer)?;
        if kind == ResultKind::InputRequired && call.meta.capabilities.is_none() {
            return Err(CallError::InputRequired);
        }
        Ok(Reply { result, kind, is_typed, era, queue, backend, standing, attempts })
    }
}

impl Call {
    /// A request without anything that goes with it. `others` are its parameters, as in [`Call::others`].
    pub fn plain(server: String, method: &'static str, others: String, deadline: Instant) -> Self {
        Self {
            id: CallId::new(),
            server,
            ask: Ask::Method(method),
            size: others.len(),
            others,
            meta: CallMeta::default(),
            listener: None,
            arrived: Instant::now(),
            deadline,
            deadline_max: None,
        }
    }

    /// The tool that is called, if one is. What the caller may not use is not there.
    fn find_tool(&self, caller: &Caller, ready: &Ready) -> Result<Option<Arc<Tool>>, CallError> {
        let Ask::Tool { name, arguments, mirrored } = &self.ask else {
            if caller.tenant.may_use_all_of(&self.server) {
                return Ok(None);
            }
            // As of a server that has nothing but tools.
            let message = "Method not found".to_owned();
            let error = ErrorObject { code: METHOD_NOT_FOUND, message, data: None };
            return Err(CallError::Backend(error));
        };
        let (found, name) = match name {
            ToolName::Own(name) => (ready.tools.get(name), name),
            ToolName::Exposed(name) => (ready.tools.exposed_as(name), name),
        };
        let may_call = |tool: &&Arc<Tool>| caller.tenant.may_call(&self.server, tool.name());
        let Some(tool) = found.filter(may_call) else {
            let (server, tool) = (self.server.clone(), name.clone());
            return Err(CallError::ToolNotFound { server, tool });
        };
        self.must_not_be_held(Some(&**tool))?;
        if let Some(mirrored) = mirrored {
            let header = |name: &str| {
                mirrored
                    .iter()
                    .find(|(header, _)| header == name)
                    .map(|(_, value)| value.as_slice())
            };
            tool.header_params.check(arguments.as_str(), header)?;
        }
        Ok(Some(tool.clone()))
    }

    /// What was changed since it was approved is not called, also if the call has waited meanwhile.
    fn must_not_be_held(&self, tool: Option<&Tool>) -> Result<(), CallError> {
        match tool.filter(|tool| tool.is_held()) {
            Some(tool) => {
                let (server, tool) = (self.server.clone(), tool.name().to_owned());
                Err(CallError::ToolHeld { server, tool })
            }
            None => Ok(()),
        }
    }

    /// The headers that repeat its arguments, where the server is to get them.
    fn headers(
        &self,
        ready: &Ready,
        tool: Option<&Tool>,
    ) -> Result<Vec<(String, String)>, CallError> {
        match (&self.ask, tool) {
            (Ask::Tool { arguments, .. }, Some(tool))
                if ready.connection.has_headers()
                    && ready.dialect.version().era() == Era::Modern =>
            {
                Ok(tool.header_params.write(arguments.as_str())?)
            }
            _ => Ok(vec![]),
        }
    }

    fn frame(&self, id: u64, ready: &Ready, tool: Option<&Tool>, meta: &CallMeta) -> Frame {
        match (&self.ask, tool) {
            (Ask::Tool { arguments, .. }, Some(tool)) => {
                ready.dialect.tools_call(id, &tool.name_json, arguments, &self.others, meta)
            }
            (Ask::Tool { .. }, None) => unreachable!("a tool that is not found is an error"),
            (Ask::Method(method), _) => ready.dialect.request(id, method, &self.others, meta),
        }
    }
}

fn read_answer(answer: Answer) -> Result<(Bytes, ResultHead), CallError> {
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => return Err(CallError::from_server_error(&error)),
    };
    let text =
        std::str::from_utf8(&result).map_err(|_| CallError::protocol("the result is not UTF-8"))?;
    let head = ResultHead::read(text).map_err(CallError::protocol)?;
    Ok((result, head))
}
