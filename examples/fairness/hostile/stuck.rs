//! A server that stops reading: health has to see that, though no call is past its deadline.

use std::time::Duration;

use super::gateway::{FAKE, again};
use super::neighbour::Neighbour;
use super::{Aim, Row};

/// The server is pinged after twice its `timeout` and after the grace of a cancelled call; the ping
/// has 5 s; then the next process starts.
const SEEN_WITHIN: Duration = Duration::from_secs(5 + 5 + 2);

pub const ROWS: &[Row] = &[Row {
    name: "stuck-full",
    does: "1 h calls that stop the server, at one slot",
    settings: |dir| {
        let log = format!("log={}", dir.join("fake.log").display());
        Ok(format!(
            "[servers.fake]\ncommand = \"python3\"\nmax_in_flight = 1\ntimeout = \"1s\"\n\
             args = [\"-I\", \"-S\", \"-X\", \"utf8\", {FAKE:?}, {log:?}]\n"
        ))
    },
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
