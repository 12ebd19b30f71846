//! The Docker engine, by its command line.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// A graceful stop takes the longest.
const COMMAND_MAX: Duration = Duration::from_secs(90);
const PAUSED_WITHIN: Duration = Duration::from_secs(20);
/// How often to look for what must come.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a command; gives what it prints.
pub async fn docker<const N: usize>(args: [&str; N]) -> Result<String> {
    run(&args).await
}

/// Runs a command of any number of words.
pub async fn run(args: &[&str]) -> Result<String> {
    let mut command = Command::new("docker");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let said = || format!("docker {}", args.join(" "));
    let output = timeout(COMMAND_MAX, command.output()).await;
    let output = output.with_context(said)?.with_context(said)?;
    if !output.status.success() {
        bail!("{}: {}", said(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Stops all processes of a container in their tracks. Some kernels cannot while the container has
/// used up its share of the processors, so it is tried again.
pub async fn pause(container: &str) -> Result<()> {
    let paused = async || docker(["pause", container]).await.ok();
    eventually("the container can be paused", PAUSED_WITHIN, paused).await?;
    Ok(())
}

/// Waits until something is there; an error if it does not come in time.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        if began.elapsed() > within {
            bail!("not in {} s: {what}", within.as_secs());
        }
        sleep(LOOK_EVERY).await;
    }
}
