//! The path of a call, from whoever calls to the backend and back. REST and MCP are two front ends of it;
//! nothing else reaches a backend.

mod error;
mod record;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::error::{CallError, Executed};
use self::record::Record;
use crate::backend::Ready;
use crate::backend::during::Listener;
use crate::backend::pending::Answer;
use crate::backend::tools::Tool;
use crate::ids::CallId;
use crate::jsonrpc::envelope::ErrorObject;
use crate::jsonrpc::{Frame, METHOD_NOT_FOUND, RawObject};
use crate::limits::Standing;
use crate::mcp::Era;
use crate::mcp::requests::CallMeta;
use crate::mcp::results::{ResultHead, ResultKind};
use crate::registry::{Lease, Owner, Registry, Server};
use crate::telemetry::metrics::Metrics;
use crate::tenant::Tenant;

/// What a request other than a tool call takes, as long as nothing better is known.
const TYPICAL: Duration = Duration::from_millis(5);

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
    pub fn servers<'a>(&'a self, caller: &'a Caller) -> impl Iterator<Item = &'a Server> {
        self.registry.iter().filter(|server| caller.tenant.sees(server.id().as_str()))
    }

    /// The server that a caller means by `id`. One it may not use does not exist for it.
    pub fn server(&self, caller: &Caller, id: &str) -> Result<&Server, CallError> {
        let server = self.registry.get(id).filter(|_| caller.tenant.sees(id));
        server.ok_or_else(|| CallError::ServerNotFound { server: id.to_owned() })
    }

    /// The server's process that a caller uses.
    pub fn backend(&self, caller: &Caller, id: &str) -> Result<Lease, CallError> {
        Ok(self.server(caller, id)?.backend(&caller.tenant.id, caller.session.as_ref())?)
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
        mut call: Call,
        record: &mut Record<'_>,
    ) -> Result<Reply, CallError> {
        if call.deadline <= Instant::now() {
            return Err(CallError::DeadlineExceeded { executed: Executed::No });
        }
        let mut admission = caller.tenant.limits.enter()?;
        let server = self.backend(caller, &call.server)?;
        let _in_flight = record.at_server(&server);

        let Tenant { id: tenant, policy, limits, .. } = &*caller.tenant;
        let mut place = server.queue().line_up(tenant, policy.weight, call.size);
        let mut ready = place.first(server.ready(call.deadline)).await??;
        let tool = call.find_tool(caller, &ready)?;
        match (&tool, &call.ask) {
            (Some(tool), _) => record.at_tool(tool),
            (None, Ask::Method(method)) => record.at_method(method),
            (None, Ask::Tool { .. }) => unreachable!("a tool that is not found is an error"),
        }

        let tool_name = tool.as_deref().map(Tool::name);
        let standing = limits.admit(&mut admission, &call.server, tool_name).await?;
        let estimate = tool.as_ref().map_or(TYPICAL, |tool| tool.typical());
        let mut permit = place.slot(estimate, call.deadline).await?;
        // Both are kept until the server is done with the call, whoever still waits for the answer.
        permit.carry(admission);
        // The server may have ended while the call waited for its slot.
        if ready.connection.is_closed() {
            ready = server.ready(call.deadline).await?;
        }
        let sent = Instant::now();
        let queue = sent.duration_since(call.arrived);
        server.metrics().queue_seconds.observe(queue.as_secs_f64());

        let (tenant, deadline) = (tenant.clone(), call.deadline);
        let ticket = ready.connection.register(tenant, call.id, deadline, Some(permit))?;
        // Before the frame is sent: what the server says first must be heard too.
        if let Some(listener) = call.listener.take() {
            ticket.listen(listener);
        }
        ticket.send(call.frame(ticket.id(), &ready, tool.as_deref()))?;
        let answer = ticket.answer().await?;

        let backend = sent.elapsed();
        if let Some(tool) = &tool {
            tool.note_time(backend);
        }
        let (result, ResultHead { kind, is_typed }) = read_answer(answer)?;
        if kind == ResultKind::InputRequired && call.meta.capabilities.is_none() {
            return Err(CallError::InputRequired);
        }
        Ok(Reply {
            result,
            kind,
            is_typed,
            era: ready.dialect.version().era(),
            queue,
            backend,
            standing,
        })
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

    fn frame(&self, id: u64, ready: &Ready, tool: Option<&Tool>) -> Frame {
        match (&self.ask, tool) {
            (Ask::Tool { arguments, .. }, Some(tool)) => {
                ready.dialect.tools_call(id, &tool.name_json, arguments, &self.others, &self.meta)
            }
            (Ask::Tool { .. }, None) => unreachable!("a tool that is not found is an error"),
            (Ask::Method(method), _) => ready.dialect.request(id, method, &self.others, &self.meta),
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
