//! Tells which servers the file of an MCP client would add. Arguments and values are not shown.

use std::path::Path;

use super::{LeftOutReason, read};
use crate::common::ids::ServerId;
use crate::config::tree::Table;
use crate::config::{Sources, Transport, read_file, servers};

/// The servers of an MCP client's file.
pub struct Found {
    pub servers: Vec<FoundServer>,
    pub warnings: Vec<String>,
}

pub struct FoundServer {
    pub id: ServerId,
    pub what: String,
}

/// Reads the file of an MCP client. An error is a sentence without secrets.
pub fn servers_of_client(path: &Path, sources: &Sources) -> Result<Found, String> {
    let text = read_file(path, sources).map_err(|error| error.to_string())?;
    let mut clients = read(path, &text, sources).map_err(|error| error.to_string())?;
    let mut settings = Table::new();
    clients.add_to(&mut settings);
    let node = settings.remove("servers").expect("added by the line before");
    let of_file = servers::servers(node, sources, &mut clients);
    let of_file = of_file.map_err(|error| error.to_string())?;
    let started = of_file.into_iter().map(|(id, server)| {
        let what = describe(&server.transport);
        FoundServer { id, what }
    });
    let left_out = clients.left_out.into_iter().map(|server| {
        let what = match server.reason {
            LeftOutReason::Disabled => "disabled in the file".to_owned(),
            LeftOutReason::Invalid(mistake) => format!("would be left out: {mistake}"),
        };
        FoundServer { id: server.id, what }
    });
    let mut servers: Vec<_> = started.chain(left_out).collect();
    servers.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Found { servers, warnings: clients.warnings })
}

fn describe(transport: &Transport) -> String {
    match transport {
        Transport::Stdio(program) => {
            // Some write the arguments behind the program.
            let command = program.command.to_string_lossy();
            let command = match command.trim().split_once(char::is_whitespace) {
                Some((first, _)) => format!("{first} …"),
                None => command.into_owned(),
            };
            let arguments = match program.args.len() {
                0 => String::new(),
                1 => ", 1 argument".to_owned(),
                count => format!(", {count} arguments"),
            };
            format!("program `{command}`{arguments}{}", names("variables", program.env.keys()))
        }
        Transport::Http(upstream) => {
            let url = &upstream.url;
            let host = url.host_str().unwrap_or_default();
            let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
            let headers = names("headers", upstream.headers.keys());
            format!("URL at {}://{host}{port}{headers}", url.scheme())
        }
    }
}

fn names<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.map(String::as_str).collect();
    if names.is_empty() { String::new() } else { format!(", {what} {}", names.join(" ")) }
}
