//! Slots of a server that several tenants share.

use std::time::Duration;

use tokio::task::JoinSet;

use super::gateway::{Gateway, again};
use super::neighbour::Neighbour;
use super::servers::bundled;
use super::{Aim, Row};

/// Twenty calls of 0.5 s run in two rounds: beside one tenant that holds all open slots, a tenant
/// has all but one of the 16 slots of the reserve.
const ROUNDS: u32 = 20_u32.div_ceil(15);
/// The deadline of hostile calls where the neighbour has to wait for one.
const DEADLINE_MS: u64 = 1_000;
/// The time until such a call has given its slot back: the bundled server does not answer calls
/// that were cancelled, so the slot is kept for the grace period.
const RUNNING_CALL: Duration = Duration::from_millis(DEADLINE_MS + 5_000);

pub const ROWS: &[Row] = &[
    Row {
        name: "slots-hour",
        does: "70 calls of 1 h; neighbour: one at a time",
        settings: |_| Ok(bundled("")),
        hostile: |gateway| hang(gateway, 70, 300_000),
        neighbour: ONE,
        aim: Aim::USUAL,
    },
    Row {
        name: "slots-hang",
        does: "48 hanging calls; neighbour: 20 of 0.5 s",
        settings: |_| Ok(bundled("")),
        hostile: |gateway| hang(gateway, 48, 300_000),
        neighbour: Neighbour {
            callers: 20,
            request: |tenant| tenant.call("std", "sleep", "", r#"{"ms":500}"#),
            answer: "slept 500 ms",
        },
        aim: Aim { rounds: ROUNDS, ..Aim::USUAL },
    },
    Row {
        name: "slots-one",
        does: "8 hanging calls with deadline 1 s at one slot",
        settings: |_| Ok(bundled("max_in_flight = 1")),
        hostile: |gateway| hang(gateway, 8, DEADLINE_MS),
        neighbour: ONE,
        // Nothing is kept of one slot: the hostile tenant's deadline bounds the time to wait.
        aim: Aim { running_call: RUNNING_CALL, ..Aim::USUAL },
    },
    Row {
        name: "slots-two",
        does: "8 hanging calls at 2 slots",
        settings: |_| Ok(bundled("max_in_flight = 2")),
        hostile: |gateway| hang(gateway, 8, 300_000),
        neighbour: ONE,
        aim: Aim::USUAL,
    },
    Row {
        name: "slots-two-lent",
        does: "the same of the server's `timeout`, 1 s",
        settings: |_| Ok(bundled("max_in_flight = 2\ntimeout = \"1s\"")),
        hostile: |gateway| hang(gateway, 8, DEADLINE_MS),
        neighbour: ONE,
        // The last slot was lent while the hostile tenant was alone.
        aim: Aim { running_call: RUNNING_CALL, ..Aim::USUAL },
    },
    Row {
        name: "slots-three",
        does: "8 hanging calls at 3 slots",
        settings: |_| Ok(bundled("max_in_flight = 3")),
        hostile: |gateway| hang(gateway, 8, 300_000),
        neighbour: ONE,
        aim: Aim::USUAL,
    },
];

/// One call of 10 ms at a time.
const ONE: Neighbour = Neighbour {
    callers: 1,
    request: |tenant| {
        tenant.call("std", "sleep", "trunkline-timeout-ms: 30000\r\n", r#"{"ms":10}"#)
    },
    answer: "slept 10 ms",
};

/// Keeps so many calls of an hour in flight, with this deadline.
fn hang(gateway: &Gateway, calls: usize, deadline_ms: u64) -> JoinSet<()> {
    let tenant = gateway.tenant("hostile");
    let header = format!("trunkline-timeout-ms: {deadline_ms}\r\n");
    again(tenant, calls, &tenant.call("std", "sleep", &header, r#"{"ms":3600000}"#))
}
