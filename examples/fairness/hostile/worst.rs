//! All that one tenant and its callers without a key can make the gateway hold, at once.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use super::apart::Flood;
use super::connections::{SLEEPS, SLOW, STEADY, WINDOW};
use super::frames::Frames;
use super::gateway::{Gateway, again};
use super::servers::{bundled, fake};
use super::{Aim, Row};

/// The length of a body, within the largest that is accepted.
const BODY: usize = 1_000_000;
/// Connections of each kind.
const KEPT: usize = 3_000;
/// Calls with long arguments: more than run and wait at a server.
const CALLS: usize = 150;
/// The time that a call may wait for a processor.
const BUSY: Duration = Duration::from_millis(100);
/// Asynchronous calls with long arguments, and batches with long results.
const ACCEPTED: usize = 32;
const BATCHES: usize = 8;

pub const ROWS: &[Row] = &[Row {
    name: "worst",
    does: "all of these at once",
    settings,
    hostile,
    neighbour: SLEEPS,
    // The row is about memory: all of them together keep the processors busy.
    aim: Aim { running_call: BUSY, ..Aim::USUAL },
}];

fn settings(dir: &Path) -> Result<String> {
    Ok(bundled("") + &fake(dir, &[], ""))
}

fn hostile(gateway: &Gateway) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    let address = tenant.address;
    let flood = |every, bytes| Flood { address, kept: KEPT, every, bytes }.start();
    let mut unread = Frames::begin(0);
    (0..100).for_each(|_| {
        unread.call(tenant, "/v1/servers/fake/tools/big", "{\"bytes\":8000000}", true);
    });
    let mut half_bodies = Frames::begin(WINDOW);
    (0..100).for_each(|_| half_bodies.call(tenant, "/v1/servers/std/tools/echo", "{", false));
    let mut table = Frames::begin(WINDOW);
    table.fill_header_table(8_000);
    let mut half_head = Frames::begin(WINDOW);
    half_head.half_head(5);
    let mut half_body = tenant.call("std", "echo", "", &"x".repeat(BODY));
    half_body.pop();

    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(BODY));
    let holds = tenant.call("fake", "hold", "", &long);
    let waits = tenant.call("std", "echo", "trunkline-timeout-ms: 60000\r\n", &long);
    let accepted = tenant.call("fake", "hold", "prefer: respond-async\r\n", &long);
    let call = r#"{"server":"fake","tool":"big","arguments":{"bytes":8000000}}"#;
    let calls = [call; 4].join(",");
    let batch = tenant.send("POST /v1/batch", "", &format!("{{\"calls\":[{calls}]}}"));

    let kinds = [
        flood(SLOW, unread.into_bytes()),
        flood(SLOW, half_bodies.into_bytes()),
        flood(SLOW, table.into_bytes()),
        flood(STEADY, half_head.into_bytes()),
        flood(SLOW, half_body),
        again(tenant, CALLS, &holds),
        again(tenant, CALLS, &waits),
        again(tenant, ACCEPTED, &accepted),
        again(tenant, BATCHES, &batch),
    ];
    let mut tasks = JoinSet::new();
    for kind in kinds {
        tasks.spawn(async move { kind.join_all().await.into_iter().collect() });
    }
    tasks
}
