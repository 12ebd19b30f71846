//! Sessions with processes of their own: their places, and turns to start.

use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::gateway::again;
use super::neighbour::Neighbour;
use super::servers::fake;
use super::{Aim, Row, mcp};

const PATH: &str = "/mcp/fake";
/// Sessions that the server may have at once, so few that all are open after the head start.
const SESSIONS: usize = 16;
/// Starts that the hostile tenant wants at once.
const STARTS: usize = 44;
/// The pause of a hostile client that was refused a session, or has lost it.
const PAUSE: Duration = Duration::from_millis(20);

pub const ROWS: &[Row] = &[
    Row {
        name: "sessions-all",
        does: "all sessions of 16, with a stream each",
        settings: |dir| Ok(server(dir, &[], &format!("max_sessions = {SESSIONS}"))),
        hostile: |gateway| {
            let mut tasks = JoinSet::new();
            for _ in 0..SESSIONS {
                let tenant = gateway.tenant("hostile").clone();
                tasks.spawn(async move {
                    loop {
                        let _ = mcp::keep_session(&tenant, PATH).await;
                        sleep(PAUSE).await;
                    }
                });
            }
            tasks
        },
        neighbour: OPENS,
        aim: Aim::USUAL,
    },
    Row {
        name: "sessions-starts",
        does: "44 starts of 1 s at once; neighbour: one",
        settings: |dir| Ok(server(dir, &["start=slow"], "")),
        hostile: |gateway| {
            let tenant = gateway.tenant("hostile");
            again(tenant, STARTS, &mcp::initialize(tenant, PATH))
        },
        neighbour: OPENS,
        aim: Aim::USUAL,
    },
];

/// Opens session after session; the oldest ones give their places to the next.
const OPENS: Neighbour = Neighbour {
    callers: 1,
    request: |tenant| mcp::initialize(tenant, PATH),
    answer: "protocolVersion",
};

/// A server with a process for each session.
fn server(dir: &Path, options: &[&str], settings: &str) -> String {
    fake(dir, options, &format!("sharing = \"session\"\n{settings}"))
}
