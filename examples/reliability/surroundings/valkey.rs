//! Valkey that stands still for moments: the rates of tenants hold all the same.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::Client;
use crate::figure::Figure;
use crate::rows::{Round, Shown};
use crate::target::{Setup, Target, post};

const PROGRAMS: [&str; 2] = ["valkey-server", "redis-server"];
/// Calls a second of the tenant, over both replicas, and at once.
const RATE: u32 = 200;
const BURST: u32 = 20;
/// Connections to each replica, and how often each calls: together eight times the rate.
const CONNECTIONS: u32 = 4;
const CALL_EVERY: Duration = Duration::from_millis(5);
/// From the start of the load until the burst is used up and both replicas share the rate.
const WARM_UP: Duration = Duration::from_secs(4);
const HICCUP_EVERY: Duration = Duration::from_secs(1);
const HICCUPS: u32 = 10;
const HICCUPS_QUICK: u32 = 4;
const PERCENT_MAX: f64 = 105.0;

pub async fn show(quick: bool) -> Result<Shown> {
    let dir = tempfile::tempdir()?;
    let Some(valkey) = start(dir.path())? else {
        let reason = "neither valkey-server nor redis-server is installed";
        return Ok(Shown::NotRun(reason.to_owned()));
    };
    let valkey = valkey.id().context("Valkey has ended")?.cast_signed();
    let valkey = Pid::from_raw(valkey).context("no process")?;
    let url = format!("unix://{}", socket(dir.path()));
    let replicas = [replica(&url).await?, replica(&url).await?];
    let addresses = [0, 1].map(|n: usize| replicas[n].address);
    let hiccups = if quick { HICCUPS_QUICK } else { HICCUPS };
    let mut figures = vec![];
    for (name, length) in [
        ("admitted, of the rate and one burst: without any", 0),
        ("with 60 ms each second", 60),
        ("with 150 ms each second", 150),
        ("with 300 ms each second", 300),
    ] {
        let length = Duration::from_millis(length);
        let (percent, failed) = load(addresses, valkey, length, hiccups).await?;
        figures.push(Figure::new(name, percent, "%", PERCENT_MAX));
        figures.push(Figure::none("calls neither answered nor refused (429)", failed));
    }
    for replica in replicas {
        replica.stop().await;
    }
    Ok(Shown::Round(Round { figures, meanwhile: None }))
}

/// Starts one that keeps nothing, on a socket in this directory. Nothing if it is not installed.
fn start(dir: &Path) -> Result<Option<Child>> {
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.args(["--unixsocket", &socket(dir), "--dir"]).arg(dir);
        match command.stdout(Stdio::null()).kill_on_drop(true).spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            started => return Ok(Some(started?)),
        }
    }
    Ok(None)
}

fn socket(dir: &Path) -> String {
    dir.join("socket").display().to_string()
}

async fn replica(url: &str) -> Result<Target> {
    let tables = format!(
        "[limits]\nshared = {url:?}\n[tenants.local]\nrate = \"{RATE}/s\"\nburst = {BURST}\n\
         servers = [\"*\"]\n"
    );
    Target::start(Setup { tables, ..Setup::default() }).await
}

/// Calls more often than the rate allows. Returns the calls admitted, in percent of those that the
/// rate and one burst allow, and how many were answered neither 200 nor 429.
async fn load(
    addresses: [SocketAddr; 2],
    valkey: Pid,
    length: Duration,
    hiccups: u32,
) -> Result<(f64, usize)> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + HICCUP_EVERY * hiccups;
    let mut callers = JoinSet::new();
    for address in addresses {
        for _ in 0..CONNECTIONS {
            callers.spawn(call(address, begin, end));
        }
    }
    for n in 0..hiccups {
        sleep_until(begin + HICCUP_EVERY * n).await;
        if !length.is_zero() {
            kill_process(valkey, Signal::STOP)?;
            sleep(length).await;
            kill_process(valkey, Signal::CONT)?;
        }
    }
    let (mut admitted, mut failed) = (0, 0);
    while let Some(caller) = callers.join_next().await {
        let (some, others) = caller??;
        admitted += some;
        failed += others;
    }
    let allowed = f64::from(RATE) * (end - begin).as_secs_f64() + f64::from(BURST);
    Ok((f64::from(admitted) / allowed * 100.0, failed))
}

/// Calls all the time, and counts from the beginning on.
async fn call(address: SocketAddr, begin: Instant, end: Instant) -> Result<(u32, usize)> {
    let request = post(address, "/v1/servers/std/tools/echo", None, "{\"text\":\"hi\"}");
    let mut client = Client::connect(address).await?;
    let (mut admitted, mut failed, mut due) = (0, 0, Instant::now());
    while due < end {
        sleep_until(due).await;
        let status = client.call(request.as_bytes()).await?.status;
        if (begin..end).contains(&Instant::now()) {
            admitted += u32::from(status == 200);
            failed += usize::from(status != 200 && status != 429);
        }
        due = (due + CALL_EVERY).max(Instant::now());
    }
    Ok((admitted, failed))
}
