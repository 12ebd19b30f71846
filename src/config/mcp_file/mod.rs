//! The servers of an MCP client's file, in the forms that the clients write.
//!
//! A mistake in one entry leaves that entry out; the others are served. Relative paths start at the
//! directory of the file, or at the workspace that the file is for.
//!
//! - `json`: JSON with comments, read into a tree that knows every value's place
//! - `entry`: one server, from the client's keys to those of `[servers.*]`
//! - `references`: the clients' ways to refer to variables
//! - `env_file`: a file of variables
//! - `names`: ids of the names that clients give
//! - `found`: what a file would add

mod entry;
mod env_file;
mod found;
mod json;
mod names;
mod references;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::entry::Entry;
pub use self::found::{Found, FoundServer, servers_of_client};
use self::references::Surroundings;
use super::Sources;
use super::error::{ConfigError, Place};
use super::tree::{Node, Table, Value};
use crate::common::ids::ServerId;

/// The members in which clients keep their servers. The first that a file has is taken.
const LISTS: [&str; 4] = ["mcpServers", "servers", "context_servers", "mcp"];
/// Directories of a workspace that hold a client's file.
const IN_WORKSPACE: [&str; 7] =
    [".vscode", ".cursor", ".roo", ".gemini", ".kiro", ".zed", ".opencode"];

/// A server of an MCP client's file that is not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub id: ServerId,
    pub reason: LeftOutReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOutReason {
    /// The file says so.
    Disabled,
    /// The mistake in its entry, with its place; for operators.
    Invalid(String),
}

/// The servers of an MCP client's file.
#[derive(Default)]
pub(super) struct ClientServers {
    /// The file as given; empty without one.
    pub(super) path: String,
    servers: Table,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) warnings: Vec<String>,
}

/// Reads the servers of a file.
pub(super) fn read(
    path: &Path,
    text: &str,
    sources: &Sources,
) -> Result<ClientServers, ConfigError> {
    let path_text: Arc<str> = path.to_string_lossy().into();
    let (mut root, place) = json::parse(&path_text, text)?;
    let (inputs, of_project) = (root.remove("inputs"), of_project(&mut root, sources));
    let list = list(&mut root);
    if list.is_none() && of_project.is_none() {
        return Err(place.error(
            "no `mcpServers` in it; the file should look like \
             {\"mcpServers\": {\"name\": {\"command\": \"npx\", \"args\": [\"…\"]}}}",
        ));
    }
    let mut servers = Table::new();
    for list in list.into_iter().chain(of_project) {
        servers.append(&mut list.into_table("mcpServers")?.1);
    }
    let surroundings = Surroundings::new(base(&sources.working_dir.join(path)), inputs, sources);
    let mut clients = ClientServers { path: path_text.to_string(), ..ClientServers::default() };
    for (name, node) in servers {
        let id = clients.id(&name, &node.place);
        match entry::read(&name, node, &surroundings, &mut clients.warnings) {
            Ok(Entry::Server(server)) => drop(clients.servers.insert(id.to_string(), server)),
            Ok(Entry::Disabled) => {
                clients.left_out.push(LeftOut { id, reason: LeftOutReason::Disabled });
            }
            Err(error) => clients.leave_out(id, error),
        }
    }
    Ok(clients)
}

/// Returns the list of servers.
fn list(root: &mut Table) -> Option<Node> {
    let (name, list) = LISTS.iter().find_map(|name| Some((*name, root.remove(*name)?)))?;
    match list.value {
        // Settings of clients have other things beside the list.
        Value::Table(mut of_mcp) if name == "mcp" && of_mcp.contains_key("servers") => {
            of_mcp.remove("servers")
        }
        value => Some(Node::new(value, list.place)),
    }
}

/// Returns the servers of Claude Code that are for the working directory alone.
fn of_project(root: &mut Table, sources: &Sources) -> Option<Node> {
    let mut projects = root.remove("projects")?;
    let mut project = projects.table_mut()?.remove(sources.working_dir.to_str()?)?;
    project.table_mut()?.remove("mcpServers")
}

/// Returns the directory that relative paths of a file start at.
fn base(file: &Path) -> PathBuf {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let name = directory.file_name().and_then(|name| name.to_str());
    match (name.is_some_and(|name| IN_WORKSPACE.contains(&name)), directory.parent()) {
        (true, Some(workspace)) => workspace.to_owned(),
        _ => directory.to_owned(),
    }
}

impl ClientServers {
    /// Adds the servers to the settings. The configuration file wins over the client's.
    pub(super) fn add_to(&mut self, settings: &mut Table) {
        let empty = || Node::table(Table::new(), Place::BuiltIn);
        let known = settings.entry("servers".to_owned()).or_insert_with(empty);
        // The reader refuses `servers` if it is not a table.
        let Some(known) = known.table_mut() else { return };
        for (id, server) in std::mem::take(&mut self.servers) {
            match known.get(&id) {
                Some(other) if other.place != Place::BuiltIn => self.warnings.push(format!(
                    "{}: server `{id}` is left out, since there is one at {}: rename one of them",
                    server.place, other.place
                )),
                _ => drop(known.insert(id, server)),
            }
        }
    }

    /// Leaves out a server, because of a mistake in its entry.
    pub(super) fn leave_out(&mut self, id: ServerId, error: ConfigError) {
        let reason = LeftOutReason::Invalid(error.in_words().join("; "));
        self.left_out.push(LeftOut { id, reason });
    }

    /// Returns the id of a server of this name, and says so if they differ.
    fn id(&mut self, name: &str, place: &Place) -> ServerId {
        let is_taken = |id: &ServerId| {
            self.servers.contains_key(id.as_str()) || self.left_out.iter().any(|it| it.id == *id)
        };
        let id = names::id_of(name, is_taken);
        if id.as_str() != name {
            self.warnings.push(format!("{place}: server {name:?} is called `{id}` here"));
        }
        id
    }
}
