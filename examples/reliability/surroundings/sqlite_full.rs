//! SQLite whose disk is full for a while: known keys stay valid, and no usage is lost.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::databases::{missing_usage, store};
use super::tmpfs::Tmpfs;
use crate::figure::Figure;
use crate::rows::{Shown, beside};
use crate::target::{Setup, Target};

/// Room for the database and its log of changes.
const DISK: &str = "size=8m";
const TIME: Duration = Duration::from_secs(8);
const TIME_QUICK: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(50);
/// When to give up.
const PATIENCE: Duration = Duration::from_secs(30);
const REFUSED_S_MAX: f64 = 5.0;

pub async fn show(quick: bool) -> Result<Shown> {
    let disk = match Tmpfs::mount(DISK)? {
        Ok(disk) => disk,
        Err(reason) => return Ok(Shown::NotRun(reason)),
    };
    let tables = store(&format!("sqlite://{}", disk.path().join("trunkline.db").display()));
    let target = Target::start(Setup { tables, with_key: true, ..Setup::default() }).await?;
    let spare = target.new_key().await?;
    let time = if quick { TIME_QUICK } else { TIME };
    let mut round = beside(&target, fill(&target, &disk, &spare, time)).await?;
    round.figures.push(missing_usage(&target, round.answered()).await);
    target.stop().await;
    Ok(Shown::Round(round))
}

async fn fill(target: &Target, disk: &Tmpfs, spare: &str, time: Duration) -> Result<Vec<Figure>> {
    let (end, mut silent, mut failed) = (Instant::now() + time, 1, 0);
    while Instant::now() < end {
        // Room that the database gives back is taken, too.
        disk.fill()?;
        failed += usize::from(!is_accepted(target, spare).await.unwrap_or(false));
        if target.get("/readyz", None).await.is_ok_and(|(_, text)| text.contains("store")) {
            silent = 0;
        }
        sleep(POLL).await;
    }
    disk.empty()?;
    let began = Instant::now();
    let revoked = loop {
        match target.command(&["key", "revoke", spare]).await {
            Err(_) if began.elapsed() < PATIENCE => sleep(POLL).await,
            revoked => break revoked,
        }
    };
    revoked?;
    let revoked_after = began.elapsed().as_secs_f64();
    while is_accepted(target, spare).await.unwrap_or(true) && began.elapsed() < PATIENCE {
        sleep(POLL).await;
    }
    let refused_after = match began.elapsed() {
        time if time < PATIENCE => time.as_secs_f64(),
        _ => f64::INFINITY,
    };
    Ok(vec![
        Figure::none("requests with a known key that failed meanwhile", failed),
        Figure::none("/readyz without a word about the store meanwhile", silent),
        Figure::new("with room again: a key is revoked after", revoked_after, "s", REFUSED_S_MAX),
        Figure::new("and refused after", refused_after, "s", REFUSED_S_MAX),
    ])
}

/// Tells whether a key is accepted. Lists are not usage.
async fn is_accepted(target: &Target, key: &str) -> Result<bool> {
    Ok(target.get("/v1/servers", Some(key)).await?.0 == 200)
}
