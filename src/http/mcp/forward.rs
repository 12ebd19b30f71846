//! Turns a client's request for a server into a [`Call`] of the gateway.

use std::borrow::Cow;

use axum::http::StatusCode;
use serde_json::Value;
use serde_json::value::RawValue;

use super::capabilities::supported_capabilities;
use super::modern::connect_question;
use super::modern::questions::{self, ParkedRef};
use super::modern::request_state::RequestState;
use super::rpc::RpcError;
use super::session::Session;
use super::target::{CallTarget, reference_members};
use super::tasks::{TaskSeal, TaskTranslation};
use super::translate::Translation;
use super::{McpRequest, PARAM_PREFIX, Scope};
use crate::backend::connection::call_notifications::{CallNotifications, NotificationSender};
use crate::common::ids::CallId;
use crate::gateway::extension::ExtensionRequest;
use crate::gateway::{Call, CallError, MirroredHeaders, Operation, ToolName};
use crate::http::headers::{asked_timeout_of, fairness_key, refuse_key};
use crate::http::rest::asked::tags;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::jsonrpc::members::MemberChange;
use crate::protocol::mcp::params::{Params, text_of};
use crate::protocol::mcp::questions::Askable;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::AskedTypes;
use crate::protocol::mcp::{Era, LogLevel, extensions, meta, method};
use crate::toolsets::arguments::ArgumentsError;
use crate::toolsets::error::ToolsetError;

/// The methods that are forwarded to a server.
const METHODS: [&str; 4] =
    [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ, method::COMPLETE];

/// Returns the name under which a method that is forwarded to a server is counted, and `None` for
/// any other. An extension that the gateway does not know has methods only where one server is
/// shown, and a toolset has tools and their tasks.
pub(super) fn forwarded_method(method: &str, scope: &Scope) -> Option<&'static str> {
    let core = METHODS.into_iter().find(|forwarded| *forwarded == method);
    core.or_else(|| match (extensions::counted_as(method)?, scope) {
        (name, Scope::One(_)) => Some(name),
        (name, Scope::Toolset(_)) => extensions::is_of_tasks(name).then_some(name),
        (name, Scope::All) => (name != method::EXTENSION).then_some(name),
    })
}

/// A call, and what it takes to answer its client.
pub(super) struct ForwardedCall {
    pub(super) call: Call,
    pub(super) translation: Translation,
    /// The server's notifications during the call, if the client takes any.
    pub(super) notifications: Option<CallNotifications>,
    /// Whether the client's user was asked to connect the tenant to the server.
    pub(super) awaits_connection: bool,
    /// The questions that its client can be asked during the call, if its server asks callers.
    pub(super) asks: Option<Askable>,
    /// The call that goes on with this request.
    pub(super) parked: Option<Box<ParkedRef>>,
}

impl ForwardedCall {
    /// Reads a request that is forwarded. `session_log_level` is the legacy session's.
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
        let (opened, parked) = opened_state(params, state.as_ref())?;
        let is_from_page = opened.as_deref().is_some_and(connect_question::is_answered);
        let awaits_connection = is_from_page && !connect_question::has_refused(params);
        let asks = questions::asks(request, method, &server);
        let other_params = other_params(request, method, &target, opened, is_from_page)?;
        let log_level = match era {
            Era::Modern => params.log_level()?,
            Era::Legacy => session_log_level,
        };
        let progress_token = params.progress_token()?;
        // A legacy client always listens: a server of its session may ask it something at any time.
        // It gets all log lines unless it set a level.
        let listens = era == Era::Legacy || progress_token.is_some() || log_level.is_some();
        let listens = listens || asks.is_some();
        let min_level = log_level.or((era == Era::Legacy).then_some(LogLevel::Debug));
        let unsent = || Some(caller.tenant.held.unsent.clone());
        let listener = listens.then(|| NotificationSender::new(min_level, unsent()));
        let (listener, notifications) = listener.unzip();
        let listener = match asks {
            Some(_) => listener.map(NotificationSender::with_questions),
            None => listener,
        };
        let traced = request.sample(method);
        let capabilities = match era {
            Era::Modern => {
                let capabilities = params.meta(meta::CLIENT_CAPABILITIES);
                let capabilities = capabilities.map_or("{}", RawValue::get);
                Some(supported_capabilities(capabilities, &http.scope, era))
            }
            // Of the client's capabilities, those for which the gateway speaks in its stead.
            Era::Legacy => {
                let askable = request.session.and_then(Session::askable);
                askable.map(|(_, declared)| (declared.clone(), AskedTypes::default()))
            }
        };
        let (capabilities, asked_types) = capabilities.unzip();
        let asked_types = asked_types.unwrap_or_default();
        let meta = CallMeta {
            progress: progress_token.is_some(),
            log_level,
            capabilities,
            asked: asked_types,
            trace: request.trace(),
            others: params.other_meta(),
        };
        let call = CallId::generate();
        let names_uris = [method::SKILLS_GET, method::DIRECTORY_READ].contains(&method);
        let exposes = names_uris && http.scope == Scope::All;
        let asks_for_tasks = match method {
            method::TOOLS_CALL => asked_types.tasks,
            _ => target.task.is_some(),
        };
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
            exposes: exposes.then(|| target.server.clone()),
            tasks: asks_for_tasks.then(|| task_translation(request, &target)),
            asks_by_url: era == Era::Modern && connect_question::can_be_asked(params, method),
            changed: target.changed.clone(),
            offload: http.app.gateway.offload().clone(),
        };
        let operation = match method {
            method::TOOLS_CALL => tool(request, target)?,
            _ if METHODS.contains(&method) => Operation::Method(method),
            _ => Operation::Extension(ExtensionRequest {
                method: request.method.to_owned(),
                name: method,
                task: target.task,
            }),
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
        Ok(Self { call, translation, notifications, awaits_connection, asks, parked })
    }
}

/// Writes the parameters that are sent on, with the target as its server names it.
fn other_params(
    request: &McpRequest<'_>,
    method: &str,
    target: &CallTarget,
    state: Option<String>,
    is_for_gateway: bool,
) -> Result<String, RpcError> {
    let params = &request.params;
    // The answer to a question of the gateway's own is not for the server.
    // In the legacy era the gateway writes this member.
    let is_for_gateway_alone = is_for_gateway || request.era == Era::Legacy;
    let answers = if is_for_gateway_alone { "inputResponses" } else { "requestState" };
    let mut others = match (method, &request.http.scope) {
        // The gateway offers no tasks, so `task` is ignored.
        (method::TOOLS_CALL, _) => {
            params.others(&["name", "arguments", "requestState", "task", answers])
        }
        (task, _) if extensions::is_of_tasks(task) => {
            let id = Value::from(target.name.as_str());
            format!(",\"taskId\":{id}{}", params.others(&["taskId", "requestState"]))
        }
        (_, Scope::One(_)) => params.others(&["requestState", answers]),
        (_, Scope::All | Scope::Toolset(_)) => {
            let name = Value::from(target.name.as_str()).to_string();
            let (member, value) = match method {
                method::COMPLETE => {
                    let reference = reference_members(params)?;
                    ("ref", reference.rewrite(|_, _| MemberChange::Keep, &[(target.member, &name)]))
                }
                _ => (target.member, name),
            };
            format!(",\"{member}\":{value}{}", params.others(&[member, "requestState", answers]))
        }
    };
    if let Some(state) = state.filter(|_| !is_for_gateway) {
        others += &format!(",\"requestState\":{}", Value::from(state));
    }
    Ok(others)
}

/// Opens the state that the client brings back: its server's, or that of a call that goes on.
fn opened_state(
    params: &Params<'_>,
    state: Option<&RequestState>,
) -> Result<(Option<String>, Option<Box<ParkedRef>>), RpcError> {
    let (Some(sealed), Some(state)) = (params.get("requestState"), state) else {
        return Ok((None, None));
    };
    let sealed = text_of(sealed).unwrap_or_default();
    let opened = (state.open(&sealed), ParkedRef::open(state, &sealed));
    if opened.0.is_none() && opened.1.is_none() {
        return Err(questions::unknown_state());
    }
    Ok(opened)
}

fn task_translation(request: &McpRequest<'_>, target: &CallTarget) -> Box<TaskTranslation> {
    Box::new(TaskTranslation {
        seal: TaskSeal::of(request),
        server: target.server.clone(),
        tool: target.name.clone(),
        is_exposed: is_exposed(request, target),
        given: request.params.get("taskId").and_then(text_of).map(Cow::into_owned),
    })
}

/// Returns whether a tool has the name that it has where all servers are shown together.
fn is_exposed(request: &McpRequest<'_>, target: &CallTarget) -> bool {
    match request.http.scope {
        Scope::All => true,
        Scope::One(_) => false,
        Scope::Toolset(_) => target.changed.is_none(),
    }
}

fn tool(request: &McpRequest<'_>, target: CallTarget) -> Result<Operation, RpcError> {
    let is_exposed = is_exposed(request, &target);
    let CallTarget { name, changed, arguments, .. } = target;
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
