//! Watching resources: each is a request to a legacy server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use trunkline::protocol::mcp::method;

use super::gateway::Gateway;
use super::neighbour::Neighbour;
use super::servers::{bundled, fake, fake_log};
use super::{Aim, Row, mcp};
use crate::client::Client;

const STREAMS: usize = 3;
/// Resources of each stream.
const NAMES: usize = 900;
/// The time until a stream is opened again with other resources.
const STREAM_TIME: Duration = Duration::from_millis(500);
/// The rate is one a minute, and a round takes less than a minute.
const REQUESTS_MAX: usize = 2;

pub const ROWS: &[Row] = &[Row {
    name: "watch-names",
    does: "3 × 900 resources, twice a second; `1/min`",
    settings,
    hostile,
    neighbour: Neighbour::ECHO,
    aim: Aim { check, ..Aim::USUAL },
}];

/// The bundled server, and a legacy one that is asked once a minute.
fn settings(dir: &Path) -> Result<String> {
    let capabilities = r#"capabilities={"tools":{},"resources":{"subscribe":true}}"#;
    Ok(bundled("") + &fake(dir, &[capabilities], "rate = \"1/min\""))
}

fn hostile(gateway: &Gateway) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for stream in 0..STREAMS {
        let tenant = gateway.tenant("hostile").clone();
        tasks.spawn(async move {
            for turn in 0.. {
                let names = (0..NAMES).map(|n| format!("\"file:///{stream}/{turn}/{n}\""));
                let names = names.collect::<Vec<_>>().join(",");
                let params = format!(r#""notifications":{{"resourceSubscriptions":[{names}]}},"#);
                let request = mcp::modern(&tenant, "/mcp/fake", method::LISTEN, None, &params);
                if let Ok(mut client) = Client::connect(tenant.address).await {
                    let _ = timeout(STREAM_TIME, client.drain(&request)).await;
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
    tasks
}

/// The server was asked as often as its rate allows.
fn check(gateway: &Gateway) -> Result<()> {
    let log = std::fs::read_to_string(fake_log(gateway.dir()))?;
    let asked = log.lines().filter(|line| line.contains(method::RESOURCES_SUBSCRIBE)).count();
    ensure!(asked > 0, "the server was never asked");
    ensure!(asked <= REQUESTS_MAX, "the server was asked {asked} times");
    Ok(())
}
