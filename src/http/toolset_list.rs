//! The tools of a toolset, as callers see them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::available::{LeftOut, ServersWithTools, tools_of_all};
use super::list_cache::ListForm;
use super::rendered_list::RenderedList;
use super::state::AppState;
use crate::backend::instance::tools::Tool;
use crate::common::policy::Grants;
use crate::gateway::Caller;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::apps::expose_page;
use crate::protocol::mcp::results::Caching;
use crate::toolsets::{Resolved, Toolset, search};

/// The form of a toolset's list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolsetForm {
    /// In pages, or the pair of tools that searches them.
    Mcp,
    /// In one piece.
    Rest,
}

/// Returns the list of a caller's toolset, from the cache or rendered.
pub(super) async fn list(
    app: &AppState,
    caller: &Caller,
    toolset: &Toolset,
    form: ToolsetForm,
    arrived: Instant,
) -> (Arc<RenderedList>, LeftOut) {
    if toolset.is_searched() && form == ToolsetForm::Mcp {
        let list = RenderedList::paged("tools", &search::definitions(), Caching::default());
        return (Arc::new(list), LeftOut::default());
    }
    let (servers, left_out) = tools_of_all(&app.gateway, caller, arrived).await;
    let number = toolset.number();
    let list_form = match form {
        ToolsetForm::Mcp => ListForm::Toolset(number),
        ToolsetForm::Rest => ListForm::RestToolset(number),
    };
    // All callers of a toolset have the same tools.
    let versions = servers.iter().map(|(server, tools)| (server.id(), tools.version()));
    let key = app.lists.key(list_form, &Grants::default(), versions);
    let len = servers.iter().map(|(_, tools)| tools.bytes()).sum();
    let render = || {
        let definitions = tools(toolset, &servers).into_iter().map(|(_, definition)| definition);
        let definitions: Vec<_> = definitions.collect();
        match form {
            // A server may be added at any time, so the list must not be cached.
            ToolsetForm::Mcp => RenderedList::paged("tools", &definitions, Caching::default()),
            ToolsetForm::Rest => RenderedList::whole("tools", &definitions, Caching::default()),
        }
    };
    let of = (&*caller.tenant, app.gateway.offload());
    (app.lists.get_or_render(key, of, len, render).await, left_out)
}

/// Returns the tools of a toolset: the name of each, and its definition under that name.
pub(super) fn tools(toolset: &Toolset, servers: &ServersWithTools) -> Vec<(String, String)> {
    let (mut seen, mut list) = (HashSet::new(), vec![]);
    for pattern in toolset.patterns() {
        for (server, tools) in servers {
            let server = server.id().as_str();
            let covers = |tool: &Tool| pattern.covers(server, Some(tool.name()));
            for (exposed, tool) in tools.exposed().filter(|(_, tool)| covers(tool)) {
                if seen.insert((server, tool.name())) {
                    list.extend(defined(toolset, server, exposed, tool));
                }
            }
        }
    }
    list
}

/// Returns a tool's name in a toolset, and its definition there. A tool that cannot be defined is
/// left out.
fn defined(
    toolset: &Toolset,
    server: &str,
    exposed: &str,
    tool: &Tool,
) -> Option<(String, String)> {
    let id = toolset.id();
    let definition = &*expose_page(tool.definition().get(), server);
    let leave_out = |why: &str| {
        tracing::warn!(
            toolset = %id, server, tool = tool.name(),
            "toolset `{id}` leaves out the tool `{}` of server `{server}`: {why}", tool.name()
        );
    };
    if let Some(changed) = toolset.changed(server, tool.name()) {
        let rewritten = changed.rewrite_definition(definition);
        if rewritten.is_none() {
            leave_out("its definition has a member twice");
        }
        return Some((changed.name.clone(), rewritten?));
    }
    if let Some(Resolved::Changed(other)) = toolset.resolve(exposed) {
        let why = format!("`{}/{}` has its name, `{exposed}`", other.server, other.tool);
        leave_out(&why);
        return None;
    }
    let name = Value::from(exposed).to_string();
    let change = |member: &str, _: &RawValue| match member {
        "name" => MemberChange::Replace(Cow::Borrowed(&*name)),
        _ => MemberChange::Keep,
    };
    let renamed = Members::parse(definition).ok()?.rewrite(change, &[]);
    Some((exposed.to_owned(), renamed))
}
