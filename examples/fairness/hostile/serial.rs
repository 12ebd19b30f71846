//! Servers whose running call delays all others. The tool `serial` is one that does.

use std::time::Duration;

use tokio::task::JoinSet;

use super::gateway::{Gateway, again};
use super::neighbour::Neighbour;
use super::servers::{bundled, fake};
use super::{Aim, Row};

/// The hostile tenant's calls at once: all slots that one tenant can have by default.
const CALLS: usize = 48;
/// The time of its calls at a serial server.
const CALL: Duration = Duration::from_millis(200);
/// The same until its answer is read and the next call is written.
const RUNNING_CALL: Duration = Duration::from_millis(220);
/// The length of an argument that is long to hash, within the largest body that is accepted.
const ARGUMENT_BYTES: usize = 1_000_000;

pub const ROWS: &[Row] = &[
    Row {
        name: "serial-hash",
        does: "48 hashing calls of 1 MB; neighbour: echo",
        settings: |_| Ok(bundled("")),
        hostile: |gateway| {
            let tenant = gateway.tenant("hostile");
            let body =
                format!("{{\"algorithm\":\"sha256\",\"text\":\"{}\"}}", "x".repeat(ARGUMENT_BYTES));
            again(tenant, CALLS, &tenant.call("std", "hash", "", &body))
        },
        neighbour: Neighbour::ECHO,
        // Calls that keep both processors busy with reading and hashing.
        aim: Aim { as_at_bare: true, ..Aim::USUAL },
    },
    Row {
        name: "serial-one",
        does: "48 calls of 0.2 s, serial, `max_in_flight = 1`",
        settings: |dir| Ok(fake(dir, &[], "max_in_flight = 1")),
        hostile: slow,
        neighbour: QUICK,
        aim: Aim { running_call: RUNNING_CALL, ..Aim::USUAL },
    },
    Row {
        name: "serial-two",
        does: "the same with `max_in_flight = 2`",
        settings: |dir| Ok(fake(dir, &[], "max_in_flight = 2")),
        hostile: slow,
        neighbour: QUICK,
        aim: Aim { running_call: RUNNING_CALL, ..Aim::USUAL },
    },
    Row {
        name: "serial-instances",
        does: "the same with `instances = 2` of one slot",
        settings: |dir| Ok(fake(dir, &[], "max_in_flight = 1\ninstances = 2")),
        hostile: slow,
        neighbour: QUICK,
        aim: Aim { running_call: RUNNING_CALL, ..Aim::USUAL },
    },
];

const QUICK: Neighbour = Neighbour {
    callers: 1,
    request: |tenant| tenant.call("fake", "serial", "", r#"{"ms":1}"#),
    answer: "done",
};

fn slow(gateway: &Gateway) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    let body = format!("{{\"ms\":{}}}", CALL.as_millis());
    again(tenant, CALLS, &tenant.call("fake", "serial", "", &body))
}
