//! Descriptors that callers use up: what was there before goes on, and the gateway keeps some.

use std::time::Duration;

use anyhow::{Context, Result};
use memchr::memmem;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::seconds_until;
use crate::client::Client;
use crate::figure::Figure;
use crate::rows::{Shown, beside};
use crate::target::{Setup, Target, post};

const DESCRIPTORS: u32 = 256;
/// The neighbour has its connections by then.
const CONNECTED_WITHIN: Duration = Duration::from_millis(300);
/// A connection that is not answered by then is not accepted.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// So many in turn, and no more will be.
const REFUSED_MAX: usize = 8;
const BACK_S_MAX: f64 = 2.0;
const KEY_S_MAX: f64 = 5.0;
/// When to give up a call.
const ANSWER_MAX: Duration = Duration::from_secs(30);

pub async fn show() -> Result<Shown> {
    let setup = Setup { descriptors: Some(DESCRIPTORS), with_key: true, ..Setup::default() };
    let target = Target::start(setup).await?;
    let mut client = Client::connect(target.address).await?;
    let before = pid(&target, &mut client).await?.context("the server does not answer")?;
    let round = beside(&target, async {
        sleep(CONNECTED_WITHIN).await;
        let (idle, _refused) = take_all(&target).await;
        let accepted = idle.len() as f64;
        let process = before.parse().ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(process, Signal::KILL)?;
        let is_back = async || {
            let now = pid(&target, &mut client).await;
            now.is_ok_and(|pid| pid.is_some_and(|pid| pid != before))
        };
        let back = seconds_until(is_back).await;
        let key = target.new_key().await;
        let is_used = async || match &key {
            Ok(key) => is_accepted(&target, &mut client, key).await,
            Err(_) => false,
        };
        let used = seconds_until(is_used).await;
        Ok(vec![
            Figure::new("idle connections that were accepted", accepted, "", None),
            Figure::new("until a server that was killed is back", back, "s", BACK_S_MAX),
            Figure::none("keys that could not be made by command", usize::from(key.is_err())),
            Figure::new("until a new key can be used", used, "s", KEY_S_MAX),
        ])
    })
    .await?;
    target.stop().await;
    Ok(Shown::Round(round))
}

/// Opens connections until no more are accepted. Returns those that are, and those that are not.
async fn take_all(target: &Target) -> (Vec<Client>, Vec<Client>) {
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", target.address);
    let (mut idle, mut refused) = (vec![], vec![]);
    while refused.len() < REFUSED_MAX {
        let Ok(mut client) = Client::connect(target.address).await else { break };
        match timeout(ANSWER_WITHIN, client.call(request.as_bytes())).await {
            Ok(Ok(_)) => idle.push(client),
            // Kept, so that the gateway still has it to accept.
            _ => refused.push(client),
        }
    }
    (idle, refused)
}

/// The process that answers, asked on a connection that there is.
async fn pid(target: &Target, client: &mut Client) -> Result<Option<String>> {
    let request = post(target.address, "/v1/servers/bad/tools/pid", None, "{}");
    let answer = timeout(ANSWER_MAX, client.call(request.as_bytes())).await??;
    let result: Value = serde_json::from_slice(answer.body)?;
    Ok(result["content"][0]["text"].as_str().map(str::to_owned))
}

/// Tells whether a call with a key is answered, on a connection that there is.
async fn is_accepted(target: &Target, client: &mut Client, key: &str) -> bool {
    let path = "/v1/servers/std/tools/echo";
    let request = post(target.address, path, Some(key), "{\"text\":\"hi\"}");
    let answer = timeout(ANSWER_MAX, client.call(request.as_bytes())).await;
    matches!(answer, Ok(Ok(it)) if memmem::find(it.body, b"\"hi\"").is_some())
}
