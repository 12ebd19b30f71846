//! Requests that are work for the gateway itself: long bodies, and lists.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use tokio::task::JoinSet;
use trunkline::protocol::mcp::method;

use super::gateway::{FAKE, Gateway, again, at_rate};
use super::neighbour::Neighbour;
use super::{Aim, Row, mcp};
use crate::target::Tenant;

/// Members of a body of 1 MB.
const MEMBERS: u32 = 90_000;
const BODIES_PER_S: u32 = 22;
/// Connections that send long bodies, and that ask for lists.
const BODY_CONNECTIONS: u32 = 8;
const LIST_CONNECTIONS: usize = 16;
/// Tools of the server that is listed.
const TOOLS: usize = 500;
/// So little that all but the first requests are refused.
const LIMITED: &str = "[tenants.hostile]\nservers = [\"*\"]\nrate = \"1/min\"\n";

pub const ROWS: &[Row] = &[
    Row {
        name: "work-params",
        does: "22/s of 1 MB, 90,000 CJK members (`/mcp`)",
        settings: |_| bundled(""),
        hostile: |gateway| bodies(gateway, in_params),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
    Row {
        name: "work-params-rate",
        does: "the same by a tenant over its rate",
        settings: |_| bundled(LIMITED),
        hostile: |gateway| bodies(gateway, in_params),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
    Row {
        name: "work-args",
        does: "the same members in arguments (REST)",
        settings: |_| bundled(""),
        hostile: |gateway| bodies(gateway, in_arguments),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
    Row {
        name: "work-args-rate",
        does: "the same by a tenant over its rate",
        settings: |_| bundled(LIMITED),
        hostile: |gateway| bodies(gateway, in_arguments),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
    Row {
        name: "work-lists-mcp",
        does: "a flood of `tools/list`, 500 tools",
        settings: |dir| listed(dir, ""),
        hostile: |gateway| lists(gateway, over_mcp),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
    Row {
        name: "work-lists-rest",
        does: "a flood of `GET …/tools`, 500 tools",
        settings: |dir| listed(dir, ""),
        hostile: |gateway| lists(gateway, over_rest),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
    Row {
        name: "work-lists-rate",
        does: "`tools/list` by a tenant over its rate",
        settings: |dir| listed(dir, LIMITED),
        hostile: |gateway| lists(gateway, over_mcp),
        neighbour: Neighbour::ECHO,
        aim: Aim::USUAL,
    },
];

fn bundled(tenants: &str) -> Result<String> {
    Ok(format!("[servers.std]\ncommand = \"trunkline\"\nargs = [\"std\"]\n{tenants}"))
}

/// The bundled server, and one with many tools.
fn listed(dir: &Path, tenants: &str) -> Result<String> {
    let (log, names) = (dir.join("fake.log"), dir.join("names"));
    std::fs::write(&names, (0..TOOLS).map(|n| format!("tool_{n} ")).collect::<String>())?;
    let (log, names) = (format!("log={}", log.display()), format!("extra={}", names.display()));
    Ok(bundled("")?
        + &format!(
            "[servers.fake]\ncommand = \"python3\"\n\
             args = [\"-I\", \"-S\", \"-X\", \"utf8\", {FAKE:?}, {log:?}, {names:?}]\n{tenants}"
        ))
}

fn bodies(gateway: &Gateway, request: fn(&Tenant) -> Vec<u8>) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    at_rate(tenant, BODY_CONNECTIONS, BODIES_PER_S, &request(tenant))
}

fn lists(gateway: &Gateway, request: fn(&Tenant) -> Vec<u8>) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    again(tenant, LIST_CONNECTIONS, &request(tenant))
}

/// Members with Chinese names, each with a comma after it.
fn members() -> String {
    (0..MEMBERS).fold(String::new(), |mut members, n| {
        let name = ['\u{4e00}', '\u{4f00}'].map(|base| {
            let digit = if base == '\u{4e00}' { n % 300 } else { n / 300 };
            char::from_u32(u32::from(base) + digit).expect("it is within the block")
        });
        write!(members, "\"{}{}\":1,", name[0], name[1]).expect("memory is enough");
        members
    })
}

fn in_params(tenant: &Tenant) -> Vec<u8> {
    let params = format!(r#"{}"name":"echo","arguments":{{"text":"x"}},"#, members());
    mcp::modern(tenant, "/mcp/std", method::TOOLS_CALL, Some("echo"), &params)
}

fn in_arguments(tenant: &Tenant) -> Vec<u8> {
    tenant.call("std", "echo", "", &format!(r#"{{{}"text":"x"}}"#, members()))
}

fn over_mcp(tenant: &Tenant) -> Vec<u8> {
    mcp::modern(tenant, "/mcp/fake", method::TOOLS_LIST, None, "")
}

fn over_rest(tenant: &Tenant) -> Vec<u8> {
    tenant.send("GET /v1/servers/fake/tools", "", "")
}
