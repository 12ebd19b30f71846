//! A server that stops reading: health has to see that, though no call is past its deadline.

use std::time::Duration;

use super::gateway::again;
use super::neighbour::Neighbour;
use super::servers::fake;
use super::{Aim, Row};

/// The server is pinged after twice its `timeout` and after the grace of a cancelled call; the ping
/// has 5 s; then the next process starts.
const SEEN_WITHIN: Duration = Duration::from_secs(5 + 5 + 2);

pub const ROWS: &[Row] = &[Row {
    name: "stuck-full",
    does: "1 h calls that stop the server, at one slot",
    settings: |dir| Ok(fake(dir, &[], "max_in_flight = 1\ntimeout = \"1s\"")),
    hostile: |gateway| {
        let tenant = gateway.tenant("hostile");
        again(tenant, 4, &tenant.call("fake", "deaf", "trunkline-timeout-ms: 300000\r\n", "{}"))
    },
    neighbour: Neighbour {
        callers: 1,
        request: |tenant| {
            tenant.call("fake", "later", "trunkline-timeout-ms: 60000\r\n", r#"{"ms":10}"#)
        },
        answer: "later",
    },
    aim: Aim { running_call: SEEN_WITHIN, ..Aim::USUAL },
}];
