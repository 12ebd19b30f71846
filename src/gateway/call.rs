//! A call as the gateway sees it, its caller, and how it is written for a server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::extension::{ExtensionRequest, TaskPlace, method_not_found};
use super::{CallError, Held};
use crate::backend::connection::call_notifications::NotificationSender;
use crate::backend::instance::tools::{Tool, ToolSet};
use crate::backend::queue::{DescribeCall, FairnessKey, WaitingInfo};
use crate::backend::{Backend, Ready};
use crate::common::ids::CallId;
use crate::common::keys::KeyId;
use crate::events::call::bounded_name;
use crate::events::{CallTags, TracedRequest};
use crate::protocol::jsonrpc::{Frame, RawObject};
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::trace::Trace;
use crate::protocol::mcp::{Era, method};
use crate::registry::{Server, SessionOwner};
use crate::tenants::Tenant;
use crate::tenants::oauth::CallerToken;
use crate::toolsets::Toolset;
use crate::toolsets::error::ToolsetError;

#[derive(Clone)]
pub struct Caller {
    /// The tenant whose limits and rights apply.
    pub tenant: Arc<Tenant>,
    /// The MCP session of the call, if any. A server with `sharing = "session"` needs one.
    pub session: Option<SessionOwner>,
    pub credential: CredentialLifetime,
    /// The key that the caller has shown, if any.
    pub key: Option<KeyId>,
    /// The token that the caller has shown, if some server is called in the name of callers.
    pub token: Option<Arc<CallerToken>>,
    /// The toolset through which the caller calls. Its tools are then all that the caller may use.
    pub toolset: Option<Arc<Toolset>>,
}

impl Caller {
    /// Returns whether the server can serve this caller: some need a session.
    pub fn can_call(&self, server: &Server) -> bool {
        self.session.is_some() || !server.needs_session()
    }

    /// Returns whether a call would start a process of the caller's own.
    pub fn must_start(&self, server: &Server) -> bool {
        server.must_start_for(&self.tenant.id, self.session.as_ref())
    }

    /// Returns the tools of a process that a call would start, known from an earlier one.
    pub fn known_tools(&self, server: &Server) -> Option<Arc<ToolSet>> {
        server.known_tools(&self.tenant.id, self.session.as_ref())
    }
}

/// The lifetime of a caller's credential. A stream must end with it, and be asked for again.
#[derive(Clone)]
pub struct CredentialLifetime {
    /// Cancelled when the key is revoked or the tenant changes.
    pub gone: CancellationToken,
    /// The time at which the key or token expires.
    pub until: Option<Instant>,
}

impl CredentialLifetime {
    /// Returns whether the rights have changed or expired.
    pub fn has_ended(&self) -> bool {
        self.gone.is_cancelled() || self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Waits until the rights have changed or expired.
    pub async fn ended(&self) {
        let gone = self.gone.cancelled();
        match self.until {
            Some(until) => timeout_at(until, gone).await.unwrap_or_default(),
            None => gone.await,
        }
    }
}

impl Caller {
    /// Returns a caller for `tenant` outside of any session.
    pub fn of(tenant: Arc<Tenant>) -> Self {
        let credential = CredentialLifetime { gone: tenant.gone.clone(), until: None };
        Self { tenant, session: None, credential, key: None, token: None, toolset: None }
    }

    /// Returns whether the caller knows of a server. One that it may not use does not exist for it.
    pub fn sees(&self, server: &str) -> bool {
        match &self.toolset {
            Some(toolset) => self.has(toolset) && toolset.has_part_of(server),
            None => self.tenant.sees(server),
        }
    }

    pub fn may_call(&self, server: &str, tool: &str) -> bool {
        match &self.toolset {
            Some(toolset) => self.has(toolset) && toolset.has_tool(server, tool),
            None => self.tenant.may_call(server, tool),
        }
    }

    /// Returns whether the caller may use prompts, resources and the like, too. A toolset has none.
    pub fn may_use_all_of(&self, server: &str) -> bool {
        self.toolset.is_none() && self.tenant.may_use_all_of(server)
    }

    /// Returns the error for a tool that does not exist for the caller.
    pub fn tool_not_found(&self, server: &str, tool: &str) -> CallError {
        let Some(toolset) = &self.toolset else {
            return CallError::ToolNotFound { server: server.to_owned(), tool: tool.to_owned() };
        };
        let name = toolset.changed(server, tool).map_or(tool, |changed| changed.name.as_str());
        let (toolset, tool) = (toolset.id().to_string(), name.to_owned());
        ToolsetError::NoTool { toolset, tool }.into()
    }

    fn has(&self, toolset: &Toolset) -> bool {
        self.tenant.has_toolset(toolset.id().as_str())
    }
}

/// Notes that a call begins, before a server can have seen it.
pub trait BeginMark: Send + Sync {
    /// Returns once the mark is kept, for each attempt. The call does not begin after an error.
    fn begin(&self) -> BoxFuture<'_, Result<(), CallError>>;
}

pub struct Call {
    pub id: CallId,
    /// The server, looked up once, among those that the caller may use.
    pub server: Arc<Server>,
    pub operation: Operation,
    /// Further members of `params`, checked: `,"name":value` each.
    pub others: String,
    pub meta: CallMeta,
    /// The memory that the call takes while it waits, in bytes, roughly.
    pub size: usize,
    /// Counts the bytes of the request until the call has ended.
    pub held: Option<Held>,
    /// Decides with which other calls of its tenant the call takes turns.
    pub fairness_key: FairnessKey,
    pub tags: CallTags,
    /// Whether the front end makes the call again if the tenant's own limits refuse it. The front
    /// end tells of a refusal then, if it is the last.
    pub waits_for_limits: bool,
    /// Passes on the notifications that the server sends about this call.
    pub listener: Option<NotificationSender>,
    pub arrived: Instant,
    pub deadline: Instant,
    /// The latest time to which progress may move the deadline.
    pub deadline_max: Option<Instant>,
    pub traced: Option<Box<TracedRequest>>,
    /// Whether the answer goes into the store, where its caller can ask for it again.
    pub is_kept: bool,
    /// Awaited when the call has its slot, before its frame is written. Most calls have none.
    pub begin_mark: Option<Arc<dyn BeginMark>>,
}

pub enum Operation {
    Tool {
        name: ToolName,
        /// Checked, otherwise untouched.
        arguments: RawObject,
        mirrored: Option<MirroredHeaders>,
    },
    /// Any other request; all its parameters are in [`Call::others`].
    Method(&'static str),
    /// A request of a method that an extension of the protocol adds; likewise.
    Extension(ExtensionRequest),
}

impl Operation {
    /// Returns the name under which a request that is no tool call is counted.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Tool { .. } => method::TOOLS_CALL,
            Self::Method(name) | Self::Extension(ExtensionRequest { name, .. }) => name,
        }
    }
}

/// The headers that repeat arguments, and must agree with them.
#[derive(Clone)]
pub struct MirroredHeaders {
    pub headers: Vec<(String, Vec<u8>)>,
    /// The arguments as the caller sent them; a toolset may have changed those of the call.
    pub arguments: RawObject,
}

#[derive(Clone)]
pub enum ToolName {
    /// The server's own name of the tool.
    Own(String),
    /// The name `server__tool`, used where all servers are shown together.
    Exposed(String),
}

/// Checks a timeout that the caller asked for by this name.
pub fn check_timeout(
    server: &Server,
    name: &str,
    asked: Option<Duration>,
) -> Result<(), CallError> {
    let max = server.config().max_deadline();
    if asked.is_some_and(|asked| asked > max) {
        let (server, max) = (server.id(), max.as_millis());
        return Err(CallError::InvalidRequest(format!(
            "`{name}` may be at most {max} for server `{server}`; its operator can raise \
             `max_deadline`"
        )));
    }
    Ok(())
}

impl DescribeCall for Call {
    fn describe(&self) -> WaitingInfo {
        let (call, target, tags) = (self.id, bounded_name(self.target()), self.boxed_tags());
        WaitingInfo { call, target, tags, deadline: self.deadline }
    }
}

impl Call {
    pub(super) fn boxed_tags(&self) -> Option<Box<CallTags>> {
        let has_none = self.tags.labels.is_empty() && self.tags.request_id.is_none();
        (!has_none).then(|| Box::new(self.tags.clone()))
    }

    /// Returns the place of the server's task that the call is about.
    pub(super) fn task(&self) -> Option<&TaskPlace> {
        match &self.operation {
            Operation::Extension(request) => request.task.as_ref(),
            Operation::Tool { .. } | Operation::Method(_) => None,
        }
    }

    /// Returns a request of the gateway's own, without metadata.
    pub fn plain(
        server: Arc<Server>,
        method: &'static str,
        others: String,
        deadline: Instant,
    ) -> Self {
        Self {
            id: CallId::generate(),
            server,
            operation: Operation::Method(method),
            size: others.len(),
            others,
            meta: CallMeta::default(),
            fairness_key: FairnessKey::default(),
            tags: CallTags::default(),
            waits_for_limits: false,
            listener: None,
            arrived: Instant::now(),
            deadline,
            deadline_max: None,
            traced: None,
            held: None,
            is_kept: false,
            begin_mark: None,
        }
    }

    /// Returns the tool of a tool call. A tool that the caller may not use does not exist for it.
    pub(super) fn find_tool(
        &self,
        caller: &Caller,
        ready: &Ready,
    ) -> Result<Option<Arc<Tool>>, CallError> {
        let server = self.server.id();
        self.refuse_if_skill_held(ready)?;
        if let Operation::Extension(request) = &self.operation {
            return request.check(caller, &self.server, ready).map(|()| None);
        }
        let Operation::Tool { name, mirrored, .. } = &self.operation else {
            if caller.may_use_all_of(server.as_str()) || self.reads_page(caller, ready) {
                return Ok(None);
            }
            // A caller with a grant of single tools sees a server that has nothing but tools.
            return Err(method_not_found("Method not found"));
        };
        let (found, name) = match name {
            ToolName::Own(name) => (ready.tools.get(name), name),
            ToolName::Exposed(name) => (ready.tools.exposed_as(name), name),
        };
        let may_call = |tool: &&Arc<Tool>| caller.may_call(server.as_str(), tool.name());
        let Some(tool) = found.filter(may_call).filter(|tool| self.is_named_well(caller, tool))
        else {
            return Err(caller.tool_not_found(server.as_str(), name));
        };
        self.refuse_if_held(Some(&**tool))?;
        if let Some(mirrored) = mirrored {
            let header = |name: &str| {
                let mut headers = mirrored.headers.iter();
                headers.find(|(header, _)| header == name).map(|(_, value)| value.as_slice())
            };
            tool.header_params.check(mirrored.arguments.as_str(), header)?;
        }
        Ok(Some(tool.clone()))
    }

    /// Returns whether a tool may be called by the name that the call has. One that the caller's
    /// toolset changes has one name alone there.
    fn is_named_well(&self, caller: &Caller, tool: &Tool) -> bool {
        let is_exposed =
            matches!(&self.operation, Operation::Tool { name: ToolName::Exposed(_), .. });
        let changed = caller.toolset.as_ref().filter(|_| is_exposed);
        changed.is_none_or(|it| it.changed(self.server.id().as_str(), tool.name()).is_none())
    }

    /// Checks the arguments against the tool's schema, if the server asks for that.
    pub(super) async fn check_arguments(
        &self,
        backend: &Backend,
        tenant: &Tenant,
        tool: Option<&Tool>,
    ) -> Result<(), CallError> {
        let (Operation::Tool { arguments, .. }, Some(tool)) = (&self.operation, tool) else {
            return Ok(());
        };
        if !backend.config().validate {
            return Ok(());
        }
        let offload = backend.offload();
        let Some(schema) = tool.arguments_schema(self.server.id(), offload).await else {
            return Ok(());
        };
        let arguments = arguments.as_str();
        let check = || schema.check(arguments);
        offload.in_place(&tenant.long_work, schema.work(arguments), check).await?;
        Ok(())
    }

    /// Refuses a tool whose definition is not approved. Checked again after the call has waited.
    pub(super) fn refuse_if_held(&self, tool: Option<&Tool>) -> Result<(), CallError> {
        match tool.filter(|tool| tool.is_held()) {
            Some(tool) => {
                let (server, tool) = (self.server.id().to_string(), tool.name().to_owned());
                Err(CallError::ToolHeld { server, tool })
            }
            None => Ok(()),
        }
    }

    /// Writes the call for a server, with the headers that repeat parts of it if the server is sent
    /// headers: its trace, and arguments.
    pub(super) fn write(
        &self,
        id: u64,
        ready: &Ready,
        tool: Option<&Tool>,
        meta: &CallMeta,
    ) -> Result<(Frame, Vec<(String, String)>), CallError> {
        let Ready { dialect, connection, .. } = ready;
        let mut headers = vec![];
        if connection.has_headers() {
            headers.extend(meta.trace.iter().flat_map(Trace::headers));
        }
        match (&self.operation, tool) {
            (Operation::Tool { arguments, .. }, Some(tool)) => {
                if connection.has_headers() && dialect.version().era() == Era::Modern {
                    headers.extend(tool.header_params.write(arguments.as_str())?);
                }
                let others = &self.others;
                Ok((dialect.tools_call(id, &tool.name_json, arguments, others, meta), headers))
            }
            (Operation::Tool { .. }, None) => unreachable!("find_tool fails for an unknown tool"),
            (Operation::Method(name), _) => {
                Ok((dialect.request(id, name, &self.others, meta), headers))
            }
            (Operation::Extension(request), _) => {
                Ok((dialect.request(id, &request.method, &self.others, meta), headers))
            }
        }
    }
}
