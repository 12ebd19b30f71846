//! `trunkline discover`

use std::env;
use std::path::{Path, PathBuf};

use super::ConfigArgs;
use super::output::print;
use super::sources;
use crate::config::{Found, FoundServer, servers_of_client};
use crate::pins::printable;

/// The files of clients, below the home directory or the working directory.
const OF_HOME: [(&str, &str); 12] = [
    ("Claude Desktop", ".config/Claude/claude_desktop_config.json"),
    ("Claude Desktop", "Library/Application Support/Claude/claude_desktop_config.json"),
    ("Claude Code", ".claude.json"),
    ("Cursor", ".cursor/mcp.json"),
    ("VS Code", ".config/Code/User/mcp.json"),
    ("VS Code", ".config/Code - Insiders/User/mcp.json"),
    ("VS Code", "Library/Application Support/Code/User/mcp.json"),
    ("Windsurf", ".codeium/windsurf/mcp_config.json"),
    ("Zed", ".config/zed/settings.json"),
    ("Gemini CLI", ".gemini/settings.json"),
    ("Copilot CLI", ".copilot/mcp-config.json"),
    ("opencode", ".config/opencode/opencode.json"),
];
const OF_WORKSPACE: [(&str, &str); 6] = [
    ("Claude Code", ".mcp.json"),
    ("Cursor", ".cursor/mcp.json"),
    ("VS Code", ".vscode/mcp.json"),
    ("Roo Code", ".roo/mcp.json"),
    ("Gemini CLI", ".gemini/settings.json"),
    ("opencode", "opencode.json"),
];

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: Args) -> anyhow::Result<()> {
    let sources = sources(ConfigArgs { config: None, mcp_config: None }, None)?;
    let home = env::var_os("HOME").map(PathBuf::from);
    let of_home =
        home.iter().flat_map(|home| OF_HOME.map(|(client, path)| (client, home.join(path))));
    let here = &sources.working_dir;
    let of_workspace = OF_WORKSPACE.map(|(client, path)| (client, here.join(path)));
    let mut files: Vec<(&str, PathBuf)> = vec![];
    for (client, path) in of_home.chain(of_workspace) {
        if path.is_file() && !files.iter().any(|(_, other)| *other == path) {
            files.push((client, path));
        }
    }
    if files.is_empty() {
        return print(
            "no file of Claude, Cursor, VS Code, Windsurf or another known client is in the home \
             directory or here; --mcp-config takes one from elsewhere\n",
        );
    }
    for (client, path) in &files {
        print(&describe(client, path, &servers_of_client(path, &sources)))?;
    }
    print("To serve the servers of a file: trunkline serve --mcp-config FILE\n")
}

/// Describes a file and what it would add. Arguments and values are often secret, so none is shown.
fn describe(client: &str, path: &Path, found: &Result<Found, String>) -> String {
    let mut text = format!("{client}: {}\n", path.display());
    match found {
        Err(mistake) => text += &format!("  cannot be used: {}\n", printable(mistake)),
        Ok(Found { servers, warnings }) => {
            for FoundServer { id, what } in servers {
                text += &format!("  {id}: {}\n", printable(what));
            }
            if servers.is_empty() {
                text += "  no servers\n";
            }
            for warning in warnings {
                text += &format!("  warning: {}\n", printable(warning));
            }
        }
    }
    text + "\n"
}
