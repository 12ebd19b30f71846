//! Tool calls at the endpoint of a toolset.

use axum::body::Body;
use axum::http::Response;

use super::McpRequest;
use super::forward::arguments_of;
use super::rpc::{self, RpcError};
use super::target::CallTarget;
use crate::gateway::hold_response;
use crate::http::available::tools_of_all;
use crate::http::toolset_list::tools;
use crate::http::unsent::hold;
use crate::protocol::mcp::names::split_resource_uri;
use crate::protocol::mcp::params::{Params, ParamsError, text_of};
use crate::protocol::mcp::{Era, method};
use crate::toolsets::search::{self, Search};
use crate::toolsets::{Resolved, Toolset};

/// Finds the tool that a request names. A toolset has tools alone.
pub(super) fn target(
    request: &McpRequest<'_>,
    toolset: &Toolset,
    method: &str,
) -> Result<CallTarget, RpcError> {
    if method == method::RESOURCES_READ {
        return page(request);
    }
    if method != method::TOOLS_CALL {
        return Err(RpcError::method_not_found(method));
    }
    let name = request.params.text("name")?;
    if toolset.is_searched() && name == search::CALL {
        return called(request, toolset);
    }
    resolve(request, toolset, &name)
}

/// Finds the page of a tool, an MCP App. The gateway checks that one of the tools has it.
fn page(request: &McpRequest<'_>) -> Result<CallTarget, RpcError> {
    let uri = request.params.text("uri")?;
    let split = split_resource_uri(&uri).filter(|(_, uri)| uri.starts_with("ui://"));
    let (server, uri) = split.ok_or_else(|| {
        RpcError::invalid_params("a toolset has no resources but the pages of its tools, `ui://…`")
    })?;
    let target = CallTarget::tool(server.to_owned(), uri.into_owned());
    Ok(CallTarget { member: "uri", ..target })
}

fn resolve(
    request: &McpRequest<'_>,
    toolset: &Toolset,
    name: &str,
) -> Result<CallTarget, RpcError> {
    match toolset.resolve(name) {
        Some(Resolved::Changed(changed)) => {
            let mut target = CallTarget::tool(changed.server.clone(), changed.tool.clone());
            target.changed = Some(changed);
            Ok(target)
        }
        Some(Resolved::Exposed { server }) => {
            Ok(CallTarget::tool(server.to_owned(), name.to_owned()))
        }
        None => Err(request.caller.tool_not_found("", name).into()),
    }
}

/// Finds the tool that is called by `call_tool`, with its arguments.
fn called(request: &McpRequest<'_>, toolset: &Toolset) -> Result<CallTarget, RpcError> {
    let given = request.params.get("arguments").ok_or(ParamsError::Missing("arguments"))?;
    let given = Params::parse(Some(given))?;
    let name = given.get("name").and_then(text_of);
    let name = name.ok_or_else(|| {
        let expected = "the name of a tool";
        ParamsError::WrongType { at: "params.arguments.name".into(), expected }
    })?;
    let mut target = resolve(request, toolset, &name)?;
    target.arguments = Some(arguments_of(request, &given)?);
    Ok(target)
}

/// Answers a call of `search_tools`; `None` for any other.
pub(super) async fn search_tools(
    request: &McpRequest<'_>,
    method: &str,
) -> Option<Result<Response<Body>, RpcError>> {
    let toolset = request.caller.toolset.as_deref().filter(|toolset| toolset.is_searched())?;
    let name = request.params.get("name").and_then(text_of)?;
    let is_search = method == method::TOOLS_CALL && name == search::SEARCH;
    if is_search { Some(answer_search(request, toolset).await) } else { None }
}

async fn answer_search(
    request: &McpRequest<'_>,
    toolset: &Toolset,
) -> Result<Response<Body>, RpcError> {
    let (http, caller) = (request.http, request.caller);
    let arguments = arguments_of(request, &request.params)?;
    let search = Search::read(arguments.as_str()).map_err(RpcError::invalid_params)?;
    let (servers, _) = tools_of_all(&http.app.gateway, caller, http.arrived).await;
    let len = servers.iter().map(|(_, tools)| tools.bytes()).sum();
    let find = || search::result(&search.find(&tools(toolset, &servers)));
    let found = http.app.gateway.offload().in_place(&caller.tenant.long_work, len, find).await;
    let found = match request.era {
        Era::Modern => format!("{{\"resultType\":\"complete\",{}", &found[1..]),
        Era::Legacy => found,
    };
    let held = hold_response(&caller.tenant, found.len())?;
    let mut response = rpc::respond_result(request.id, &found);
    hold(&mut response, Some(held));
    Ok(response)
}
