//! Connections without a key, and requests that have no end.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use super::apart::Flood;
use super::frames::Frames;
use super::gateway::Gateway;
use super::neighbour::Neighbour;
use super::servers::bundled;
use super::{Aim, Row};
use crate::target::Tenant;

/// More connections than the gateway has.
const KEPT: usize = 17_000;
pub const WINDOW: u32 = 65_535;
/// One connection each 0.2 ms.
const FAST: Duration = Duration::from_micros(200);
/// Connections with more than a few bytes each.
pub const STEADY: Duration = Duration::from_millis(2);
/// Connections with a megabyte or a hundred requests each. More would measure the processor.
pub const SLOW: Duration = Duration::from_millis(20);
/// As much of a head as is accepted without its end: of HTTP/1, and of HTTP/2 in further frames.
const HALF_HEAD: usize = 16_000;
const HALF_HEAD_FRAMES: usize = 5;
/// The length of a body, of which all but the last byte comes.
const BODY: usize = 1_000_000;

pub const ROWS: &[Row] = &[
    Row {
        name: "connections-http2",
        does: "17,000 over HTTP/2 without a key, 0.2 ms each",
        settings,
        hostile: |gateway| flood(gateway, FAST, healthz()),
        neighbour: SLEEPS,
        aim: Aim::USUAL,
    },
    Row {
        name: "connections-http1",
        does: "the same over HTTP/1",
        settings,
        hostile: |gateway| flood(gateway, FAST, HEALTHZ.into()),
        neighbour: SLEEPS,
        aim: Aim::USUAL,
    },
    Row {
        name: "connections-new",
        does: "the same; neighbour: a new connection each",
        settings,
        hostile: |gateway| flood(gateway, FAST, HEALTHZ.into()),
        neighbour: NEWCOMER,
        // The system hands connections over in the order in which they came.
        aim: Aim { as_at_bare: true, ..Aim::USUAL },
    },
    Row {
        name: "connections-table",
        does: "header tables that keep their buffers",
        settings,
        hostile: |gateway| {
            let mut frames = Frames::begin(WINDOW);
            frames.fill_header_table(8_000);
            flood(gateway, SLOW, frames.into_bytes())
        },
        neighbour: SLEEPS,
        aim: Aim::USUAL,
    },
    Row {
        name: "half-heads-http1",
        does: "heads of 16 kB without an end",
        settings,
        hostile: |gateway| {
            let head = format!("GET / HTTP/1.1\r\nx-slow: {}", "x".repeat(HALF_HEAD));
            flood(gateway, STEADY, head.into_bytes())
        },
        neighbour: NEWCOMER,
        aim: Aim::USUAL,
    },
    Row {
        name: "half-heads-http2",
        does: "heads of 96 kB without an end",
        settings,
        hostile: |gateway| {
            let mut frames = Frames::begin(WINDOW);
            frames.half_head(HALF_HEAD_FRAMES);
            flood(gateway, STEADY, frames.into_bytes())
        },
        neighbour: NEWCOMER,
        aim: Aim::USUAL,
    },
    Row {
        name: "half-bodies",
        does: "bodies of 1 MB without the last byte",
        settings,
        hostile: |gateway| {
            let tenant = gateway.tenant("hostile");
            let mut request = tenant.call("std", "echo", "", &"x".repeat(BODY));
            request.pop();
            flood(gateway, SLOW, request)
        },
        neighbour: SLEEPS,
        aim: Aim::USUAL,
    },
    Row {
        name: "half-bodies-http2",
        does: "100 bodies a connection without their ends",
        settings,
        hostile: |gateway| {
            let tenant = gateway.tenant("hostile");
            let mut frames = Frames::begin(WINDOW);
            (0..100).for_each(|_| frames.call(tenant, "/v1/servers/std/tools/echo", "{", false));
            flood(gateway, SLOW, frames.into_bytes())
        },
        neighbour: SLEEPS,
        aim: Aim { as_at_bare: true, ..Aim::USUAL },
    },
];

const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Twenty calls of 10 ms at once.
pub const SLEEPS: Neighbour = Neighbour {
    callers: 20,
    request: |tenant| tenant.call("std", "sleep", "", r#"{"ms":10}"#),
    answer: "slept 10 ms",
};

/// Each call is a newcomer's.
const NEWCOMER: Neighbour = Neighbour {
    callers: 4,
    request: |tenant: &Tenant| tenant.call("std", "sleep", "connection: close\r\n", r#"{"ms":10}"#),
    answer: "slept 10 ms",
};

fn settings(_: &Path) -> Result<String> {
    Ok(bundled(""))
}

fn healthz() -> Vec<u8> {
    let mut frames = Frames::begin(WINDOW);
    frames.get("/healthz", None);
    frames.into_bytes()
}

fn flood(gateway: &Gateway, every: Duration, bytes: Vec<u8>) -> JoinSet<()> {
    let address = gateway.tenant("hostile").address;
    Flood { address, kept: KEPT, every, bytes }.start()
}
