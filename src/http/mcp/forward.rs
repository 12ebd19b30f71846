//! A client's request that goes on to a server: from its parameters to a [`Call`].

use axum::http::{HeaderMap, StatusCode};
use serde_json::Value;
use serde_json::value::RawValue;

use super::modern::request_state::RequestState;
use super::rpc::RpcError;
use super::translate::Reshape;
use super::{Asking, PARAM_PREFIX, Scope};
use crate::backend::connection::call_notifications::{CallNotifications, NotificationListener};
use crate::common::ids::CallId;
use crate::gateway::{Ask, Call, CallError, Caller, ToolName};
use crate::http::rest::call::asked_timeout;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::jsonrpc::rewrite::MemberChange;
use crate::protocol::mcp::params::{Params, ParamsError, text_of};
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::{Era, LogLevel, meta, method, names};

/// The requests that go on to a server as they are.
pub(super) const METHODS: [&str; 4] =
    [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ, method::COMPLETE];

/// A call, and what it takes to answer it.
pub(super) struct Forward {
    pub(super) call: Call,
    pub(super) reshape: Reshape,
    pub(super) events: Option<CallNotifications>,
}

/// What a request names, and on which server.
struct Subject {
    server: String,
    /// In the server's own terms, except for tools.
    name: String,
}

impl Forward {
    /// Reads one of [`METHODS`]. `log_level` is what its session asked for, in the legacy era.
    pub(super) fn read(
        asking: &Asking<'_>,
        caller: &Caller,
        method: &'static str,
        log_level: Option<LogLevel>,
    ) -> Result<Self, RpcError> {
        let params = &asking.params;
        let subject = Subject::read(asking, method)?;
        let server = asking.front.gateway.server(caller, &subject.server).map_err(|error| {
            let (server, tool) = (subject.server.clone(), subject.name.clone());
            match method {
                method::TOOLS_CALL => CallError::ToolNotFound { server, tool },
                _ => error,
            }
        })?;
        let asked = asked_timeout(asking.headers)?;
        let timeout = asked.unwrap_or(server.config().timeout);
        // Whoever names a deadline means it.
        let max_timeout = server.config().max_timeout.filter(|_| asked.is_none());
        let state = (asking.era == Era::Modern).then(|| RequestState {
            sealer: asking.front.sealer.clone(),
            tenant: caller.tenant.id.clone(),
            server: subject.server.clone(),
            method,
            subject: subject.name.clone(),
            arguments: params
                .get("arguments")
                .map(|json| asking.body.slice_ref(json.get().as_bytes())),
        });
        let others = others(asking, method, &subject, state.as_ref())?;
        let log_level = match asking.era {
            Era::Modern => params.log_level()?,
            Era::Legacy => log_level,
        };
        let progress_token = params.progress_token()?;
        let (listener, events) = match asking.era {
            // It may be asked something by a server of its own at any time, and gets log lines unless it said no.
            Era::Legacy => Some(NotificationListener::new(log_level.or(Some(LogLevel::Debug)))),
            Era::Modern if progress_token.is_some() || log_level.is_some() => {
                Some(NotificationListener::new(log_level))
            }
            Era::Modern => None,
        }
        .unzip();
        let meta = CallMeta {
            progress: progress_token.is_some(),
            log_level,
            capabilities: capabilities(asking)?,
            others: with_trace(params, asking.headers),
        };
        let reshape = Reshape {
            era: asking.era,
            id: asking.id.to_owned(),
            progress_token: progress_token.map(RawValue::to_owned),
            method,
            uri: match method {
                method::RESOURCES_READ => Some(params.text("uri")?.into_owned()),
                _ => None,
            },
            state,
        };
        let ask = match method {
            method::TOOLS_CALL => tool(asking, subject.name)?,
            _ => Ask::Method(method),
        };
        let call = Call {
            id: CallId::generate(),
            server: subject.server,
            ask,
            others,
            meta,
            size: asking.body.len(),
            listener,
            arrived: asking.arrived,
            deadline: asking.arrived + timeout,
            deadline_max: max_timeout.map(|max| asking.arrived + max),
        };
        Ok(Self { call, reshape, events })
    }
}

impl Subject {
    fn read(asking: &Asking<'_>, method: &str) -> Result<Self, RpcError> {
        let params = &asking.params;
        let name = match method {
            method::RESOURCES_READ => params.text("uri")?,
            method::COMPLETE => return Self::of_completion(asking),
            _ => params.text("name")?,
        };
        let split = match (asking.scope, method) {
            (Scope::One(server), _) => Some((server.as_str(), &*name)),
            // The whole name is looked up: it may be a shortened one.
            (Scope::All, method::TOOLS_CALL) => {
                names::split(&name).map(|(server, _)| (server, &*name))
            }
            (Scope::All, method::RESOURCES_READ) => names::split_resource_uri(&name),
            (Scope::All, _) => names::split(&name),
        };
        match owned(split) {
            Some((server, name)) => Ok(Self { server, name }),
            None => Err(unknown(&name)),
        }
    }

    /// What is to be completed names a prompt or a resource.
    fn of_completion(asking: &Asking<'_>) -> Result<Self, RpcError> {
        let (member, name) = reference(&asking.params)?;
        let split = match (asking.scope, member) {
            (Scope::One(server), _) => Some((server.clone(), name.to_string())),
            (Scope::All, "uri") => owned(names::split_resource_uri(&name)),
            (Scope::All, _) => owned(names::split(&name)),
        };
        match split {
            Some((server, name)) => Ok(Self { server, name }),
            None => Err(unknown(&name)),
        }
    }
}

fn owned(split: Option<(&str, &str)>) -> Option<(String, String)> {
    split.map(|(server, name)| (server.to_owned(), name.to_owned()))
}

fn unknown(name: &str) -> RpcError {
    let name: String = name.chars().take(100).collect();
    RpcError::invalid_params(format!(
        "{name:?} is nothing that is listed here: tools and prompts are named `server__name`, resources `trunkline:server/uri`"
    ))
}

/// The member of `params.ref` that names what is to be completed, and its value.
fn reference<'a>(
    params: &Params<'a>,
) -> Result<(&'static str, std::borrow::Cow<'a, str>), RpcError> {
    let reference = params.get("ref").ok_or(ParamsError::Missing("ref"))?;
    let error = |error| RpcError::from(ParamsError::Members { at: "params.ref", error });
    let members = Members::parse(reference.get()).map_err(error)?;
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

/// The parameters that are passed on, in the server's own terms.
fn others(
    asking: &Asking<'_>,
    method: &str,
    subject: &Subject,
    state: Option<&RequestState>,
) -> Result<String, RpcError> {
    let params = &asking.params;
    // Without the capability, a wish to make a task of it is ignored.
    let mut others = match (method, asking.scope) {
        (method::TOOLS_CALL, _) => params.others(&["name", "arguments", "requestState", "task"]),
        (_, Scope::One(_)) => params.others(&["requestState"]),
        (_, Scope::All) => {
            let name = Value::from(subject.name.as_str()).to_string();
            let (member, value) = match method {
                method::PROMPTS_GET => ("name", name),
                method::RESOURCES_READ => ("uri", name),
                _ => ("ref", {
                    let (member, _) = reference(params)?;
                    let reference = params.get("ref").map_or("{}", RawValue::get);
                    let reference = Members::parse(reference)
                        .map_err(|error| ParamsError::Members { at: "params.ref", error })?;
                    reference.rewrite(|_, _| MemberChange::Keep, &[(member, &name)])
                }),
            };
            format!(",\"{member}\":{value}{}", params.others(&[member, "requestState"]))
        }
    };
    if let (Some(sealed), Some(state)) = (params.get("requestState"), state) {
        let opened = text_of(sealed).and_then(|sealed| state.open(&sealed));
        let Some(opened) = opened else {
            return Err(RpcError::invalid_params(
                "`params.requestState` was not given out for this request, or is too old: start again without it",
            ));
        };
        others += &format!(",\"requestState\":{}", Value::from(opened));
    }
    Ok(others)
}

fn tool(asking: &Asking<'_>, name: String) -> Result<Ask, RpcError> {
    let name = match asking.scope {
        Scope::All => ToolName::Exposed(name),
        Scope::One(_) => ToolName::Own(name),
    };
    let arguments = match asking.params.get("arguments") {
        None => RawObject::empty(),
        Some(arguments) => RawObject::of(asking.body, arguments).map_err(|error| {
            RpcError::from(CallError::InvalidArguments(error))
                .with_modern_status(StatusCode::BAD_REQUEST)
        })?,
    };
    let mirrored = (asking.era == Era::Modern).then(|| mirrored_params(asking.headers));
    Ok(Ask::Tool { name, arguments, mirrored })
}

fn mirrored_params(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let mirrored = headers.iter().filter(|(name, _)| name.as_str().starts_with(PARAM_PREFIX));
    mirrored.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

/// What a modern client can do, for a server to ask of it. A legacy client cannot be asked through a shared
/// server at all.
fn capabilities(asking: &Asking<'_>) -> Result<Option<String>, RpcError> {
    if asking.era == Era::Legacy {
        return Ok(None);
    }
    let capabilities = asking.params.meta(meta::CLIENT_CAPABILITIES);
    let capabilities = capabilities.ok_or_else(|| RpcError::invalid_params("no capabilities"))?;
    Ok(Some(carried_capabilities(capabilities.get())))
}

/// A client's capabilities without those that the gateway cannot carry: it has no tasks, and a server that made one
/// would work for nobody.
pub(super) fn carried_capabilities(capabilities: &str) -> String {
    const TASKS: &str = "io.modelcontextprotocol/tasks";
    if !capabilities.contains("tasks") {
        return capabilities.to_owned();
    }
    let Ok(mut capabilities) = serde_json::from_str::<Value>(capabilities) else {
        return "{}".to_owned();
    };
    if let Some(members) = capabilities.as_object_mut() {
        members.remove("tasks");
        let extensions = members.get_mut("extensions").and_then(Value::as_object_mut);
        extensions.map(|extensions| extensions.remove(TASKS));
    }
    capabilities.to_string()
}

/// The trace of the HTTP request goes on with the call, unless the client said anything of one in the body.
fn with_trace(params: &Params<'_>, headers: &HeaderMap) -> String {
    let others = params.other_meta();
    let has_own = [meta::TRACEPARENT, meta::TRACESTATE].iter().any(|it| params.meta(it).is_some());
    if has_own { others } else { others + &crate::http::trace::members(headers) }
}
