//! Two tenants, every way to call, both eras on both sides.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::caller::{Caller, Front};
use crate::calls::{Call, Outcome, Server};
use crate::report::Case;
use crate::stack::{Stack, Tenant};
use crate::work::count;

/// Calls at once of each tenant, by each way, to each server.
const CALLS: usize = 25;

pub async fn run(stack: &Stack, case: &mut Case) -> Result<()> {
    combinations(stack, case).await?;
    sees_only_its_own(stack, case, &stack.amber, &["everything", "std"]).await?;
    sees_only_its_own(stack, case, &stack.blue, &["everything", "own", "std"]).await?;
    refusals(stack, case).await
}

/// All of them at the same time, and all number their requests alike.
async fn combinations(stack: &Stack, case: &mut Case) -> Result<()> {
    let mut calls = JoinSet::new();
    for tenant in [&stack.amber, &stack.blue] {
        for front in Front::ALL {
            let caller = stack.caller_by(tenant, front).await?;
            for server in [Server::Std, Server::Everything] {
                for _ in 0..CALLS {
                    let caller = caller.clone();
                    calls.spawn(
                        async move { (front, server, caller.call(&Call::echo(server)).await) },
                    );
                }
            }
        }
    }
    let outcomes = calls.join_all().await;
    for (front, server) in [
        (Front::Rest, Server::Std),
        (Front::Rest, Server::Everything),
        (Front::Modern, Server::Std),
        (Front::Modern, Server::Everything),
        (Front::Legacy, Server::Std),
        (Front::Legacy, Server::Everything),
    ] {
        let of_these = outcomes.iter().filter(|(by, of, _)| (*by, *of) == (front, server));
        let right = of_these.filter(|(_, _, outcome)| *outcome == Outcome::Right).count();
        case.all(&format!("{front:?} to `{}`, own answers", server.name()), right, 2 * CALLS);
    }
    Ok(())
}

async fn sees_only_its_own(
    stack: &Stack,
    case: &mut Case,
    tenant: &Tenant,
    servers: &[&str],
) -> Result<()> {
    let caller = stack.caller(tenant, &stack.balancer);
    let list = caller.get("/v1/servers").await?.json.context("no list of servers")?;
    let mut seen = names(&list["servers"], "id");
    seen.sort();
    let what = format!("{} sees", tenant.name);
    case.check(&what, seen.join(", "), servers.join(", "), seen == servers);
    Ok(())
}

fn names(list: &Value, key: &str) -> Vec<String> {
    let name = |item: &Value| item[key].as_str().unwrap_or("?").to_owned();
    list.as_array().map(|list| list.iter().map(name).collect()).unwrap_or_default()
}

/// Checks that a server that is not granted does not exist, and that a key is needed.
async fn refusals(stack: &Stack, case: &mut Case) -> Result<()> {
    let amber = stack.caller(&stack.amber, &stack.balancer);
    let modern = stack.caller_by(&stack.amber, Front::Modern).await?;
    let list = modern.post(&modern.message("tools/list", json!({}))).await?;
    let list = list.json.context("no list of tools")?;
    let tools = names(&list["result"]["tools"], "name");
    let foreign = tools.iter().filter(|name| name.starts_with("own__")).count();
    case.check("tools in amber's list", tools.len(), "some", tools.len() > 7);
    case.none("tools in it of a server that is not granted", foreign);
    let own = Call::echo(Server::Own);
    let unseen = amber.call(&own).await;
    case.all(
        "`own` is not found by amber",
        count(&[unseen], |it| it.has_code("server_not_found")),
        1,
    );
    let mut nobodies = vec![];
    for caller in [amber.without_key(), wrong_key(stack)] {
        nobodies.push(caller.call(&Call::echo(Server::Std)).await);
    }
    let refused = count(&nobodies, |it| it.has_code("unauthenticated"));
    case.all("refused without a key, and with a wrong one", refused, nobodies.len());
    Ok(())
}

fn wrong_key(stack: &Stack) -> Caller {
    let key = stack.amber.key.chars().rev().collect();
    stack.caller(&Tenant { name: "nobody", key }, &stack.balancer)
}
