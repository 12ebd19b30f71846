//! Requests that are work for the gateway itself: long bodies, and lists.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use tokio::task::JoinSet;
use trunkline::protocol::mcp::method;

use super::gateway::{Gateway, again, at_rate};
use super::neighbour::Neighbour;
use super::servers::{bundled, fake};
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
    row("work-params", "22/s of 1 MB, 90,000 CJK members (`/mcp`)", bundled_only, params),
    row("work-params-rate", "the same by a tenant over its rate", bundled_limited, params),
    row("work-args", "the same members in arguments (REST)", bundled_only, arguments),
    row("work-args-rate", "the same by a tenant over its rate", bundled_limited, arguments),
    row("work-lists-mcp", "a flood of `tools/list`, 500 tools", listed, lists_over_mcp),
    row("work-lists-rest", "a flood of `GET …/tools`, 500 tools", listed, lists_over_rest),
    row(
        "work-lists-rate",
        "`tools/list` by a tenant over its rate",
        listed_limited,
        lists_over_mcp,
    ),
];

const fn row(
    name: &'static str,
    does: &'static str,
    settings: fn(&Path) -> Result<String>,
    hostile: fn(&Gateway) -> JoinSet<()>,
) -> Row {
    Row { name, does, settings, hostile, neighbour: Neighbour::ECHO, aim: Aim::USUAL }
}

fn bundled_only(_: &Path) -> Result<String> {
    Ok(bundled(""))
}

fn bundled_limited(_: &Path) -> Result<String> {
    Ok(bundled(LIMITED))
}

/// The bundled server, and one with many tools.
fn listed(dir: &Path) -> Result<String> {
    let names = dir.join("names");
    std::fs::write(&names, (0..TOOLS).map(|n| format!("tool_{n} ")).collect::<String>())?;
    Ok(bundled("") + &fake(dir, &[&format!("extra={}", names.display())], ""))
}

fn listed_limited(dir: &Path) -> Result<String> {
    Ok(listed(dir)? + LIMITED)
}

fn params(gateway: &Gateway) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    let params = format!(r#"{}"name":"echo","arguments":{{"text":"x"}},"#, members());
    bodies(tenant, &mcp::modern(tenant, "/mcp/std", method::TOOLS_CALL, Some("echo"), &params))
}

fn arguments(gateway: &Gateway) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    let arguments = format!(r#"{{{}"text":"x"}}"#, members());
    bodies(tenant, &tenant.call("std", "echo", "", &arguments))
}

fn bodies(tenant: &Tenant, request: &[u8]) -> JoinSet<()> {
    at_rate(tenant, BODY_CONNECTIONS, BODIES_PER_S, request)
}

fn lists_over_mcp(gateway: &Gateway) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    let request = mcp::modern(tenant, "/mcp/fake", method::TOOLS_LIST, None, "");
    again(tenant, LIST_CONNECTIONS, &request)
}

fn lists_over_rest(gateway: &Gateway) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    again(tenant, LIST_CONNECTIONS, &tenant.send("GET /v1/servers/fake/tools", "", ""))
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
