//! Sends requests about one replica's sessions to the other: a session's own process, its
//! questions, cancelling, its end.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::answer::{Answer, data_of};
use crate::caller::Caller;
use crate::calls::{Call, Outcome, Server};
use crate::docker::eventually;
use crate::processes::processes;
use crate::report::{Case, seconds};
use crate::stack::{Gateway, Stack};

/// The longest time of a cancelled call: a longer one was not cancelled, but ended by itself.
const SOON: Duration = Duration::from_secs(5);
/// How long the calls take that are cancelled.
const LONG: Duration = Duration::from_secs(14);
const ELICITATION: &str = "trigger-elicitation-request";

pub async fn run(stack: &Stack, case: &mut Case) -> Result<()> {
    let [owner, other] = &stack.gateways;
    let session = stack.caller(&stack.blue, &owner.url);
    let session = session.open("/mcp/own", json!({"elicitation": {"form": {}}})).await?;
    let elsewhere = session.at(&other.url);
    let mut right = 0;
    for caller in [&session, &elsewhere, &elsewhere, &session] {
        right += usize::from(caller.call(&Call::echo(Server::Own)).await == Outcome::Right);
    }
    case.all("calls of a session's own server, by both replicas, right", right, 4);
    let asked =
        [("owner", "other", &session, &elsewhere), ("other", "owner", &elsewhere, &session)];
    for (calls, replies, caller, replier) in asked {
        let what = format!("asked by way of the {calls}, answered by way of the {replies}");
        case.all(&what, usize::from(elicit(caller, replier).await?), 1);
    }
    let long = Call {
        tool: "trigger-long-running-operation",
        arguments: json!({"duration": LONG.as_secs(), "steps": 2}),
        ..Call::echo(Server::Own)
    };
    cancel(case, "its own server's call", owner, &session, &elsewhere, &long).await?;
    let shared = stack.caller(&stack.blue, &owner.url).open("/mcp", json!({})).await?;
    let sleep = Call::sleep(LONG.as_millis() as u64);
    cancel(case, "a call on the other", other, &shared.at(&other.url), &shared, &sleep).await?;
    ended(case, owner, &session, &elsewhere).await?;
    shared.delete().await?;
    Ok(())
}

/// A server asks during a call, and is answered by another way than the call's. Whether the answer
/// has arrived.
async fn elicit(caller: &Caller, replier: &Caller) -> Result<bool> {
    let is_there = async || {
        let list = caller.post(&caller.message("tools/list", json!({}))).await.ok()?;
        list.json?["result"]["tools"].to_string().contains(ELICITATION).then_some(())
    };
    eventually("the server has seen that it may ask", SOON, is_there).await?;
    let call = Call { tool: ELICITATION, arguments: json!({}), ..Call::echo(Server::Own) };
    let mut stream = Stream::new(caller.send(&caller.tool_call(&call)).await?);
    let question = loop {
        let message = stream.next().await?.context("the stream ended before the question")?;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    let result = json!({"action": "accept", "content": {"name": call.expected, "check": true}});
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    let noted = replier.post(&reply).await?;
    if noted.status != 202 {
        bail!("the reply was not taken: {noted:?}");
    }
    while let Some(message) = stream.next().await? {
        if message.get("result").is_some() {
            return Ok(message.to_string().contains(&call.expected));
        }
    }
    Ok(false)
}

/// A call is cancelled by another way than its own.
async fn cancel(
    case: &mut Case,
    what: &str,
    runs_at: &Gateway,
    caller: &Caller,
    canceller: &Caller,
    call: &Call,
) -> Result<()> {
    let before = runs_at.metric("trunkline_cancelled_calls_total", "").await?;
    let message = caller.tool_call(call);
    let calling = tokio::spawn({
        let (caller, message) = (caller.clone(), message.clone());
        async move { Answer::read(caller.send(&message).await?).await }
    });
    let is_there = async || (runs_at.in_flight().await.ok()? == 1).then_some(());
    eventually("the call is under way", SOON, is_there).await?;
    let params = json!({"requestId": message["id"], "reason": "no longer needed"});
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    let (began, noted) = (Instant::now(), canceller.post(&notice).await?);
    let answer = timeout(LONG * 2, calling).await.context("the call does not end")???;
    let took = began.elapsed();
    let is_cancelled = noted.status == 202 && answer.json.is_none_or(|it| it["result"].is_null());
    let after = runs_at.metric("trunkline_cancelled_calls_total", "").await?;
    let what = format!("{what}, cancelled by way of the one that does not have it, ends after");
    let is_good = is_cancelled && took <= SOON && after > before;
    case.check(&what, seconds(took), format!("{} by itself", seconds(LONG)), is_good);
    Ok(())
}

/// `DELETE` by way of the other ends it at both, and its process.
async fn ended(
    case: &mut Case,
    owner: &Gateway,
    session: &Caller,
    elsewhere: &Caller,
) -> Result<()> {
    let deleted = elsewhere.delete().await?;
    let mut refused = 0;
    for caller in [session, elsewhere] {
        let answer = caller.post(&caller.message("ping", json!({}))).await?;
        refused += usize::from(answer.status == 404);
    }
    case.check("DELETE by way of the other", deleted.status, "204", deleted.status == 204);
    case.all("replicas that refuse the session at once", refused, 2);
    let began = Instant::now();
    let look = async || {
        let processes = processes(&owner.container).await.ok()?;
        (!processes.iter().any(|process| process.name == "node")).then_some(())
    };
    eventually("the session's process is gone", SOON * 2, look).await?;
    case.note("its process is gone after", seconds(began.elapsed()));
    Ok(())
}

/// A response that is read as it comes.
struct Stream {
    response: Response,
    read: String,
}

impl Stream {
    fn new(response: Response) -> Self {
        Self { response, read: String::new() }
    }

    /// The next message; nothing at the end.
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            while let Some((event, rest)) = self.read.split_once("\n\n") {
                let (data, rest) = (data_of(event), rest.to_owned());
                self.read = rest;
                if data.is_some() {
                    return Ok(data);
                }
            }
            let chunk = timeout(LONG, self.response.chunk()).await.context("no more of it")??;
            let Some(chunk) = chunk else { return Ok(None) };
            self.read += std::str::from_utf8(&chunk)?;
        }
    }
}
