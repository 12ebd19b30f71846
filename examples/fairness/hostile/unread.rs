//! Answers that nobody reads.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use super::apart::Flood;
use super::connections::SLEEPS;
use super::frames::Frames;
use super::gateway::Gateway;
use super::servers::{bundled, fake};
use super::{Aim, Row};

/// The bytes of an answer: far more than the buffers of a socket hold.
const ANSWER: &str = "{\"bytes\":8000000}";
/// Requests at once on each connection of HTTP/2.
const STREAMS: usize = 100;
const KEPT: usize = 2000;
const EVERY: Duration = Duration::from_millis(20);
const CALLS: &str = "/v1/servers/fake/tools/big";
const LISTS: &str = "/v1/servers/fake/tools";

pub const ROWS: &[Row] = &[
    Row {
        name: "unread-http2-calls",
        does: "calls of 8 MB, window 0, `max_in_flight = 1`",
        settings: |dir| settings(dir, "max_in_flight = 1"),
        hostile: |gateway| {
            let tenant = gateway.tenant("hostile");
            over_http2(gateway, |frames| frames.call(tenant, CALLS, ANSWER, true))
        },
        neighbour: SLEEPS,
        aim: Aim { as_at_bare: true, ..Aim::USUAL },
    },
    Row {
        name: "unread-http2-lists",
        does: "lists of tools, window 0, `rate = \"1/h\"`",
        settings: |dir| settings(dir, "rate = \"1/h\""),
        hostile: |gateway| {
            let key = &gateway.tenant("hostile").key;
            over_http2(gateway, |frames| frames.get(LISTS, Some(key)))
        },
        neighbour: SLEEPS,
        aim: Aim { as_at_bare: true, ..Aim::USUAL },
    },
    Row {
        name: "unread-http1-calls",
        does: "calls of 8 MB over HTTP/1, `max_in_flight = 1`",
        settings: |dir| settings(dir, "max_in_flight = 1"),
        hostile: |gateway| {
            let tenant = gateway.tenant("hostile");
            flood(gateway, tenant.call("fake", "big", "", ANSWER))
        },
        neighbour: SLEEPS,
        aim: Aim::USUAL,
    },
    Row {
        name: "unread-http1-lists",
        does: "100 lists on each connection, `rate = \"1/h\"`",
        settings: |dir| settings(dir, "rate = \"1/h\""),
        hostile: |gateway| {
            let key = &gateway.tenant("hostile").key;
            let list =
                format!("GET {LISTS} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
            flood(gateway, list.repeat(STREAMS).into_bytes())
        },
        neighbour: SLEEPS,
        aim: Aim::USUAL,
    },
];

fn settings(dir: &Path, hostile: &str) -> Result<String> {
    let servers = bundled("") + &fake(dir, &[], "");
    Ok(format!("{servers}[tenants.hostile]\nservers = [\"*\"]\n{hostile}\n"))
}

fn over_http2(gateway: &Gateway, request: impl Fn(&mut Frames)) -> JoinSet<()> {
    let mut frames = Frames::begin(0);
    (0..STREAMS).for_each(|_| request(&mut frames));
    flood(gateway, frames.into_bytes())
}

fn flood(gateway: &Gateway, bytes: Vec<u8>) -> JoinSet<()> {
    let address = gateway.tenant("hostile").address;
    Flood { address, kept: KEPT, every: EVERY, bytes }.start()
}
