//! Turns a client's request for a server into a [`Call`] of the gateway.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::Value;
use serde_json::value::RawValue;

use super::modern::request_state::RequestState;
use super::rpc::RpcError;
use super::translate::Translation;
use super::{McpRequest, PARAM_PREFIX, Scope, toolset};
use crate::backend::connection::call_notifications::{CallNotifications, NotificationSender};
use crate::common::ids::CallId;
use crate::gateway::{Call, CallError, MirroredHeaders, Operation, ToolName};
use crate::http::headers::{asked_timeout_of, fairness_key, refuse_key};
use crate::http::rest::asked::tags;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::params::{Params, ParamsError, text_of};
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::{Era, LogLevel, TASKS_EXTENSION, meta, method, names};
use crate::toolsets::ChangedTool;
use crate::toolsets::arguments::ArgumentsError;
use crate::toolsets::error::ToolsetError;

/// The methods that are forwarded to a server.
const METHODS: [&str; 4] =
    [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ, method::COMPLETE];

/// Returns the name of a method that is forwarded to a server, and `None` for any other.
pub(super) fn forwarded_method(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|forwarded| *forwarded == method)
}

/// A call, and what it takes to answer its client.
pub(super) struct ForwardedCall {
    pub(super) call: Call,
    pub(super) translation: Translation,
    /// The server's notifications during the call, if the client takes any.
    pub(super) notifications: Option<CallNotifications>,
}

impl ForwardedCall {
    /// Reads a request for one of [`METHODS`]. `session_log_level` is the legacy session's.
    pub(super) fn read(
        request: &McpRequest<'_>,
        method: &'static str,
        session_log_level: Option<LogLevel>,
    ) -> Result<Self, RpcError> {
        let read = Self::read_request(request, method, session_log_level);
        read.map_err(|mut error| {
            let id = CallId::generate();
            let name =
                ["name", "uri"].iter().find_map(|it| request.params.get(it).and_then(text_of));
            let target = name.as_deref().unwrap_or(method);
            let code = error.call_code.unwrap_or("invalid_request");
            let traced = request.sample(method);
            request.http.tell_refused(id, target, code, None, traced);
            error.call = Some(id);
            error
        })
    }

    fn read_request(
        request: &McpRequest<'_>,
        method: &'static str,
        session_log_level: Option<LogLevel>,
    ) -> Result<Self, RpcError> {
        let McpRequest { http, caller, era, id, ref params, .. } = *request;
        let target = CallTarget::read(request, method)?;
        let server =
            http.app.gateway.server(caller, &target.server).map_err(|error| match method {
                method::TOOLS_CALL => caller.tool_not_found(&target.server, &target.name),
                _ => error,
            })?;
        refuse_key(&http.headers)?;
        let asked = asked_timeout_of(&server, &http.headers)?;
        let timeout = asked.unwrap_or(server.config().timeout);
        // Progress does not extend a deadline that the client chose.
        let max_timeout = server.config().max_timeout.filter(|_| asked.is_none());
        let state = (era == Era::Modern).then(|| RequestState {
            sealer: http.app.sealer.clone(),
            tenant: caller.tenant.id.clone(),
            server: match &http.scope {
                Scope::Toolset(toolset) => format!("{toolset}/{}", target.server),
                Scope::All | Scope::One(_) => target.server.clone(),
            },
            method,
            name: target.name.clone(),
            arguments: params
                .get("arguments")
                .map(|json| http.body.slice_ref(json.get().as_bytes())),
        });
        let other_params = other_params(request, method, &target, state.as_ref())?;
        let log_level = match era {
            Era::Modern => params.log_level()?,
            Era::Legacy => session_log_level,
        };
        let progress_token = params.progress_token()?;
        // A legacy client always listens: a server of its session may ask it something at any time.
        // It gets all log lines unless it set a level.
        let listens = era == Era::Legacy || progress_token.is_some() || log_level.is_some();
        let min_level = log_level.or((era == Era::Legacy).then_some(LogLevel::Debug));
        let unsent = || Some(caller.tenant.held.unsent.clone());
        let listener = listens.then(|| NotificationSender::new(min_level, unsent()));
        let (listener, notifications) = listener.unzip();
        let traced = request.sample(method);
        // Through a shared server a legacy client cannot be asked anything.
        let capabilities = (era == Era::Modern).then(|| {
            let capabilities = params.meta(meta::CLIENT_CAPABILITIES);
            let keeps_extensions = matches!(http.scope, Scope::One(_));
            supported_capabilities(capabilities.map_or("{}", RawValue::get), keeps_extensions)
        });
        let (capabilities, has_extensions) = capabilities.unzip();
        let meta = CallMeta {
            progress: progress_token.is_some(),
            log_level,
            capabilities,
            has_extensions: has_extensions.unwrap_or_default(),
            trace: request.trace(),
            others: params.other_meta(),
        };
        let call = CallId::generate();
        let translation = Translation {
            era,
            id: id.to_owned(),
            call,
            progress_token: progress_token.map(RawValue::to_owned),
            method,
            uri: match method {
                method::RESOURCES_READ => Some(params.text("uri")?.into_owned()),
                _ => None,
            },
            state,
            changed: target.changed.clone(),
            offload: http.app.gateway.offload().clone(),
        };
        let operation = match method {
            method::TOOLS_CALL => tool(request, target)?,
            _ => Operation::Method(method),
        };
        let call = Call {
            id: call,
            server,
            operation,
            others: other_params,
            meta,
            size: http.body.len(),
            held: http.held.clone(),
            fairness_key: fairness_key(&http.headers)?,
            tags: tags(&http.headers).unwrap_or_default(),
            waits_for_limits: false,
            listener,
            arrived: http.arrived,
            deadline: http.arrived + timeout,
            deadline_max: max_timeout.map(|max| http.arrived + max),
            traced,
            is_kept: false,
            begin_mark: None,
        };
        Ok(Self { call, translation, notifications })
    }
}

/// The tool, prompt or resource that a request names, and its server.
pub(super) struct CallTarget {
    server: String,
    /// As the server names it; a tool where several servers are shown keeps the name it has there.
    name: String,
    /// The member of `params`, or of `params.ref`, that holds the name.
    member: &'static str,
    /// The tool, if the caller's toolset changes it.
    pub(super) changed: Option<Arc<ChangedTool>>,
    /// The tool's arguments, if they are not those of the request.
    pub(super) arguments: Option<RawObject>,
}

impl CallTarget {
    fn read(request: &McpRequest<'_>, method: &str) -> Result<Self, RpcError> {
        if let Some(toolset) = &request.caller.toolset {
            return toolset::target(request, toolset, method);
        }
        let params = &request.params;
        let (member, name) = match method {
            method::COMPLETE => completion_reference(params)?,
            method::RESOURCES_READ => ("uri", params.text("uri")?),
            _ => ("name", params.text("name")?),
        };
        let split = match (&request.http.scope, member) {
            (scope, "uri") => scope.split_uri(&name),
            (Scope::One(server), _) => Some((server.as_str(), &*name)),
            // The gateway looks up the whole name, because it may be a shortened one.
            (Scope::All, _) if method == method::TOOLS_CALL => {
                names::split(&name).map(|(server, _)| (server, &*name))
            }
            (Scope::All | Scope::Toolset(_), _) => names::split(&name),
        };
        match split {
            Some((server, name)) => {
                Ok(Self::tool(server.to_owned(), name.to_owned()).named_by(member))
            }
            None => {
                let name: String = name.chars().take(100).collect();
                Err(RpcError::invalid_params(format!(
                    "{name:?} is not listed here: tools and prompts are named `server__name`, \
                     resources `trunkline:server/uri`"
                )))
            }
        }
    }
}

impl CallTarget {
    pub(super) fn tool(server: String, name: String) -> Self {
        Self { server, name, member: "name", changed: None, arguments: None }
    }

    fn named_by(self, member: &'static str) -> Self {
        Self { member, ..self }
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

fn reference_members<'a>(params: &Params<'a>) -> Result<Members<'a>, ParamsError> {
    let reference = params.get("ref").ok_or(ParamsError::Missing("ref"))?;
    let error = |error| ParamsError::Members { at: "params.ref", error };
    Members::of_caller(reference.get()).map_err(error)
}

/// Writes the parameters that are sent on, with the target as its server names it.
fn other_params(
    request: &McpRequest<'_>,
    method: &str,
    target: &CallTarget,
    state: Option<&RequestState>,
) -> Result<String, RpcError> {
    let params = &request.params;
    let mut others = match (method, &request.http.scope) {
        // The gateway offers no tasks, so `task` is ignored.
        (method::TOOLS_CALL, _) => params.others(&["name", "arguments", "requestState", "task"]),
        (_, Scope::One(_)) => params.others(&["requestState"]),
        (_, Scope::All | Scope::Toolset(_)) => {
            let name = Value::from(target.name.as_str()).to_string();
            let (member, value) = match method {
                method::COMPLETE => {
                    let reference = reference_members(params)?;
                    ("ref", reference.rewrite(|_, _| MemberChange::Keep, &[(target.member, &name)]))
                }
                _ => (target.member, name),
            };
            format!(",\"{member}\":{value}{}", params.others(&[member, "requestState"]))
        }
    };
    if let (Some(sealed), Some(state)) = (params.get("requestState"), state) {
        let opened = text_of(sealed).and_then(|sealed| state.open(&sealed)).ok_or_else(|| {
            RpcError::invalid_params(
                "`params.requestState` was not given out for this request, or has expired: \
                 start again without it",
            )
        })?;
        others += &format!(",\"requestState\":{}", Value::from(opened));
    }
    Ok(others)
}

fn tool(request: &McpRequest<'_>, target: CallTarget) -> Result<Operation, RpcError> {
    let CallTarget { name, changed, arguments, .. } = target;
    let is_exposed = match request.http.scope {
        Scope::All => true,
        Scope::One(_) => false,
        Scope::Toolset(_) => changed.is_none(),
    };
    let name = if is_exposed { ToolName::Exposed(name) } else { ToolName::Own(name) };
    // Headers repeat the arguments of the request alone.
    let has_headers = request.era == Era::Modern && arguments.is_none();
    let given = match arguments {
        Some(arguments) => arguments,
        None => arguments_of(request, &request.params)?,
    };
    let headers = request.http.headers.iter();
    let mirrored = headers.filter(|(name, _)| name.as_str().starts_with(PARAM_PREFIX));
    let mirrored = mirrored.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    let mirrored = has_headers
        .then(|| MirroredHeaders { headers: mirrored.collect(), arguments: given.clone() });
    let arguments = match changed {
        Some(changed) => changed.rewrite_arguments(given).map_err(refused)?,
        None => given,
    };
    Ok(Operation::Tool { name, arguments, mirrored })
}

fn refused(error: ArgumentsError) -> CallError {
    ToolsetError::from(error).into()
}

/// Returns the member `arguments` of a tool call's parameters.
pub(super) fn arguments_of(
    request: &McpRequest<'_>,
    params: &Params<'_>,
) -> Result<RawObject, RpcError> {
    match params.get("arguments") {
        None => Ok(RawObject::empty()),
        // Some clients write no arguments so.
        Some(arguments) if arguments.get() == "null" => Ok(RawObject::empty()),
        Some(arguments) => RawObject::of(&request.http.body, arguments).map_err(|error| {
            RpcError::from(CallError::InvalidArguments(error))
                .with_modern_status(StatusCode::BAD_REQUEST)
        }),
    }
}

/// Removes what the gateway does not carry from a client's capabilities, and returns whether they
/// name extensions. A server that made a task would work for nobody. Extensions are carried only
/// where one modern server is shown to a modern client.
pub(super) fn supported_capabilities(capabilities: &str, keeps_extensions: bool) -> (String, bool) {
    if !capabilities.contains("tasks") && !capabilities.contains("extensions") {
        return (capabilities.to_owned(), false);
    }
    let Ok(mut capabilities) = serde_json::from_str::<Value>(capabilities) else {
        return ("{}".to_owned(), false);
    };
    let mut has_extensions = false;
    if let Some(members) = capabilities.as_object_mut() {
        members.remove("tasks");
        if let Some(mut extensions) = members.remove("extensions").filter(|_| keeps_extensions) {
            extensions.as_object_mut().map(|extensions| extensions.remove(TASKS_EXTENSION));
            has_extensions = extensions.as_object().is_some_and(|it| !it.is_empty());
            members.insert("extensions".to_owned(), extensions);
        }
    }
    (capabilities.to_string(), has_extensions)
}
