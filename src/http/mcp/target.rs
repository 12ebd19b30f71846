//! The server that a request is for, and the name that it has there.

use std::borrow::Cow;
use std::sync::Arc;

use super::rpc::RpcError;
use super::tasks::{TaskRef, TaskSeal, takes_tasks, tasks_not_declared};
use super::{McpRequest, Scope, toolset};
use crate::gateway::extension::{TaskPlace, unknown_task};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::mcp::extensions::is_of_tasks;
use crate::protocol::mcp::params::{Params, ParamsError, text_of};
use crate::protocol::mcp::{Era, method, names};
use crate::toolsets::ChangedTool;

/// The tool, prompt, resource or task that a request names, and its server.
pub(super) struct CallTarget {
    pub(super) server: String,
    /// As the server names it; a tool where several servers are shown keeps the name it has there.
    pub(super) name: String,
    /// The member of `params`, or of `params.ref`, that holds the name.
    pub(super) member: &'static str,
    /// The tool, if the caller's toolset changes it.
    pub(super) changed: Option<Arc<ChangedTool>>,
    /// The tool's arguments, if they are not those of the request.
    pub(super) arguments: Option<RawObject>,
    /// The place of a server's task.
    pub(super) task: Option<TaskPlace>,
}

impl CallTarget {
    pub(super) fn read(request: &McpRequest<'_>, method: &'static str) -> Result<Self, RpcError> {
        if is_of_tasks(method) {
            return Self::task(request, method);
        }
        if let Some(toolset) = &request.caller.toolset {
            return toolset::target(request, toolset, method);
        }
        let params = &request.params;
        let (member, name) = match method {
            // At one server, so there is nothing to find.
            method::EXTENSION => ("", Cow::Borrowed(request.method)),
            method::COMPLETE => completion_reference(params)?,
            method::RESOURCES_READ | method::SKILLS_GET | method::DIRECTORY_READ => {
                ("uri", params.text("uri")?)
            }
            _ => ("name", params.text("name")?),
        };
        let own = |(server, name): (&str, &str)| Self::tool(server.to_owned(), name.to_owned());
        let split = match (&request.http.scope, member) {
            (scope, "uri") => scope
                .split_uri(&name)
                .map(|(server, uri)| Self::tool(server.to_owned(), uri.into_owned())),
            (Scope::One(server), _) => Some(own((server, &name))),
            // The gateway looks up the whole name, because it may be a shortened one.
            (Scope::All, _) if method == method::TOOLS_CALL => {
                names::split(&name).map(|(server, _)| own((server, &name)))
            }
            (Scope::All | Scope::Toolset(_), _) => names::split(&name).map(own),
        };
        match split {
            Some(target) => Ok(Self { member, ..target }),
            None => {
                let name: String = name.chars().take(100).collect();
                Err(RpcError::invalid_params(format!(
                    "{name:?} is not listed here: tools and prompts are named `server__name`, \
                     resources `trunkline:server/uri`, `ui://server/…` and `skill://server/…`"
                )))
            }
        }
    }

    /// Finds the task of a server's that a request is about.
    fn task(request: &McpRequest<'_>, method: &'static str) -> Result<Self, RpcError> {
        if request.era == Era::Legacy {
            return Err(RpcError::method_not_found(method));
        }
        if !takes_tasks(request) {
            return Err(tasks_not_declared());
        }
        let id = request.params.text("taskId")?;
        match TaskSeal::of(request).open(&id) {
            Some(TaskRef::OfServer { server, id, place }) => {
                let toolset = request.caller.toolset.as_ref().filter(|_| !place.is_exposed);
                let changed = toolset.and_then(|it| it.changed(&server, &place.tool)).cloned();
                let target = Self::tool(server, id);
                Ok(Self { member: "taskId", changed, task: Some(place), ..target })
            }
            // Answered before, from the call's record.
            Some(TaskRef::OfCall { .. }) | None => Err(unknown_task().into()),
        }
    }

    pub(super) fn tool(server: String, name: String) -> Self {
        Self { server, name, member: "name", changed: None, arguments: None, task: None }
    }
}

/// Returns the member of `params.ref` that names the prompt or resource, and its value.
fn completion_reference<'a>(params: &Params<'a>) -> Result<(&'static str, Cow<'a, str>), RpcError> {
    let members = reference_members(params)?;
    if let Some(twin) = members.case_variant(&["type", "name", "uri"]) {
        return Err(ParamsError::CaseVariant { at: "params.ref", name: twin.to_owned() }.into());
    }
    let member = match members.get("type").and_then(text_of).as_deref() {
        Some("ref/prompt") => Some("name"),
        Some("ref/resource") => Some("uri"),
        _ => None,
    };
    let named = member.and_then(|member| Some((member, members.get(member).and_then(text_of)?)));
    let expected = "a `ref/prompt` with its `name` or a `ref/resource` with its `uri`";
    named.ok_or_else(|| ParamsError::WrongType { at: "params.ref".into(), expected }.into())
}

pub(super) fn reference_members<'a>(params: &Params<'a>) -> Result<Members<'a>, ParamsError> {
    let reference = params.get("ref").ok_or(ParamsError::Missing("ref"))?;
    let error = |error| ParamsError::Members { at: "params.ref", error };
    Members::of_caller(reference.get()).map_err(error)
}
