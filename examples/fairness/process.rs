//! A gateway in a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;

/// How long a gateway may take to get ready, and to end.
const START_PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// An address where nobody listens.
pub async fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?)
}

/// Returns this program, which logs errors alone.
pub fn program() -> Result<Command> {
    let mut program = Command::new(std::env::current_exe()?);
    program.env("RUST_LOG", "error");
    Ok(program)
}

/// Starts a gateway with the configuration file of a directory, and waits until it is ready.
pub async fn start(mut program: Command, dir: &Path, address: SocketAddr) -> Result<Child> {
    program.args(["serve", "--listen", &address.to_string()]);
    let mut process = program.current_dir(dir).kill_on_drop(true).spawn()?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let give_up = Instant::now() + START_PATIENCE;
    while Instant::now() < give_up {
        if let Ok(mut client) = Client::connect(address).await
            // A gateway that does not serve yet may listen, and not answer.
            && let Ok(answer) = timeout(ANSWER_WITHIN, client.call(request.as_bytes())).await
            && answer.is_ok_and(|answer| answer.status == 200)
        {
            return Ok(process);
        }
        if let Some(status) = process.try_wait()? {
            bail!("the gateway did not get ready: {status}");
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the gateway did not get ready");
}

/// Ends it. Returns its exit status if it ended by itself.
pub async fn stop(mut process: Child) -> Option<ExitStatus> {
    let pid = process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    pid.map(|pid| kill_process(pid, Signal::TERM));
    let ended = timeout(PATIENCE, process.wait()).await;
    if ended.is_err() {
        let _ = process.kill().await;
    }
    ended.ok()?.ok()
}
