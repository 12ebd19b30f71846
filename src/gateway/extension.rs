//! Requests of methods that extensions of the protocol add. They pass like any other call: the
//! server must have declared the extension, and the caller must have the right.

use super::{Call, CallError, Caller, Operation};
use crate::backend::Ready;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::jsonrpc::{INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::protocol::mcp::apps::names_page;
use crate::protocol::mcp::extensions::is_of_events;
use crate::protocol::mcp::method;
use crate::protocol::mcp::params::text_of;
use crate::registry::Server;

#[derive(Debug)]
pub struct ExtensionRequest {
    /// As the caller wrote it.
    pub method: String,
    /// The name under which it is counted.
    pub name: &'static str,
    /// The task of the server's that it is about.
    pub task: Option<TaskPlace>,
}

/// The origin of a server's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPlace {
    pub tool: String,
    /// Whether the tool has the name that it has where all servers are shown together.
    pub is_exposed: bool,
    /// The run of the process that has the task. A later process may give its id to another.
    pub run: u64,
}

impl ExtensionRequest {
    /// Checks that the server has the method, for this caller.
    pub(super) fn check(
        &self,
        caller: &Caller,
        server: &Server,
        ready: &Ready,
    ) -> Result<(), CallError> {
        let id = server.id().as_str();
        let may_use = match &self.task {
            Some(task) => {
                let exposed = || Some(ready.tools.exposed_as(&task.tool)?.name().to_owned());
                let own = if task.is_exposed { exposed() } else { Some(task.tool.clone()) };
                own.is_some_and(|tool| caller.may_call(id, &tool))
            }
            None => caller.may_use_all_of(id),
        };
        if !may_use || !ready.about.own_words.declared().has(&self.method) {
            return Err(match self.task {
                Some(_) => unknown_task(),
                None => method_not_found("Method not found"),
            });
        }
        if is_of_events(&self.method) && matches!(server, Server::Shared(_)) {
            return Err(method_not_found(
                "events are not carried to a shared server, which would not know whose they are; \
                 its operator can give each tenant a process with `sharing = \"tenant\"`",
            ));
        }
        Ok(())
    }
}

impl Call {
    /// Returns whether the call reads the page of a tool that the caller may call. Whoever may call
    /// a tool may see its results.
    pub(super) fn reads_page(&self, caller: &Caller, ready: &Ready) -> bool {
        let Operation::Method(method::RESOURCES_READ) = self.operation else { return false };
        let params = format!("{{{}}}", self.others.trim_start_matches(','));
        let uri =
            Members::parse(&params).ok().and_then(|it| Some(text_of(it.get("uri")?)?.into_owned()));
        let server = self.server.id().as_str();
        uri.is_some_and(|uri| {
            let mut tools = ready.tools.iter();
            tools.any(|tool| {
                names_page(tool.definition().get(), &uri) && caller.may_call(server, tool.name())
            })
        })
    }
}

/// Returns the error for a method that the server does not have, for this caller.
pub(super) fn method_not_found(message: &str) -> CallError {
    let message = message.into();
    CallError::backend(ErrorObject { code: METHOD_NOT_FOUND, message, data: None })
}

/// Returns the error for a task that does not exist, does so no longer, or is another tenant's.
pub fn unknown_task() -> CallError {
    let message = "there is no such task, or it has ended with its server's process".into();
    CallError::backend(ErrorObject { code: INVALID_PARAMS, message, data: None })
}
