//! Calls that end a server that several tenants share.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::gateway::Gateway;
use super::neighbour::Neighbour;
use super::servers::fake;
use super::{Aim, Row};
use crate::client::Client;

const CALLERS: usize = 4;
/// The hostile tenant ends a process so often, until it is refused.
const EVERY: Duration = Duration::from_secs(1);

pub const ROWS: &[Row] = &[Row {
    name: "poison",
    does: "one call a second that ends the process",
    settings: |dir| Ok(fake(dir, &[], "")),
    hostile,
    neighbour: Neighbour {
        callers: CALLERS,
        request: |tenant| tenant.call("fake", "later", "", r#"{"ms":10}"#),
        answer: "later",
    },
    aim: Aim { lost_per_crash: CALLERS as u64, ..Aim::USUAL },
}];

fn hostile(gateway: &Gateway) -> JoinSet<()> {
    let (tenant, crashes) = (gateway.tenant("hostile").clone(), gateway.crashes.clone());
    let request = tenant.call("fake", "exit", "", "{}");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut next = interval(EVERY);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            next.tick().await;
            if let Ok(mut client) = Client::connect(tenant.address).await
                && let Ok(answer) = client.call(&request).await
                && answer.status == 502
            {
                crashes.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    tasks
}
