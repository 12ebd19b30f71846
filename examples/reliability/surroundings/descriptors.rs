//! Descriptors that callers use up: what was there before goes on, and the gateway keeps some.

use std::time::Duration;

use anyhow::{Context, Result};
use memchr::memmem;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

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
/// When to give up.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

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
        let back = works_again(&target, &mut client, &before).await;
        let (made, used) = new_key(&target, &mut client).await;
        Ok(vec![
            Figure::new("idle connections that were accepted", accepted, "", None),
            Figure::new("until a server that was killed is back", back, "s", BACK_S_MAX),
            Figure::none("keys that could not be made by command", usize::from(!made)),
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

/// Returns how long it took until another process answers, in seconds.
async fn works_again(target: &Target, client: &mut Client, before: &str) -> f64 {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if pid(target, client).await.is_ok_and(|it| it.is_some_and(|pid| pid != before)) {
            return began.elapsed().as_secs_f64();
        }
        sleep(POLL).await;
    }
    f64::INFINITY
}

/// The process that answers, asked on a connection that there is.
async fn pid(target: &Target, client: &mut Client) -> Result<Option<String>> {
    let request = post(target.address, "/v1/servers/bad/tools/pid", None, "{}");
    let answer = timeout(PATIENCE, client.call(request.as_bytes())).await??;
    let result: Value = serde_json::from_slice(answer.body)?;
    Ok(result["content"][0]["text"].as_str().map(str::to_owned))
}

/// Makes a key by command. Tells whether that worked, and after how long it is accepted, in
/// seconds.
async fn new_key(target: &Target, client: &mut Client) -> (bool, f64) {
    let began = Instant::now();
    let Ok(key) = target.new_key().await else { return (false, f64::INFINITY) };
    let request =
        post(target.address, "/v1/servers/std/tools/echo", Some(&key), "{\"text\":\"hi\"}");
    while began.elapsed() < PATIENCE {
        let answer = timeout(PATIENCE, client.call(request.as_bytes())).await;
        if matches!(answer, Ok(Ok(it)) if memmem::find(it.body, b"\"hi\"").is_some()) {
            return (true, began.elapsed().as_secs_f64());
        }
        sleep(POLL).await;
    }
    (true, f64::INFINITY)
}
