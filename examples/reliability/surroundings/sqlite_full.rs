//! SQLite whose disk is full for a while: known keys stay valid, and no usage is lost.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::databases::{missing_usage, store};
use super::seconds_until;
use super::tmpfs::Tmpfs;
use crate::figure::Figure;
use crate::rows::{Shown, beside};
use crate::target::{Setup, Target};

/// Room for the database and its log of changes.
const DISK: &str = "size=8m";
const TIME: Duration = Duration::from_secs(8);
const TIME_QUICK: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(50);
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
    round.figures.extend(missing_usage(&target, round.answered()).await);
    target.stop().await;
    Ok(Shown::Round(round))
}

async fn fill(target: &Target, disk: &Tmpfs, spare: &str, time: Duration) -> Result<Vec<Figure>> {
    let (end, mut silent, mut failed) = (Instant::now() + time, 1, 0);
    while Instant::now() < end {
        // Room that the database gives back is taken, too.
        disk.fill()?;
        failed += usize::from(status(target, spare).await != Some(200));
        if target.get("/readyz", None).await.is_ok_and(|(_, text)| text.contains("store")) {
            silent = 0;
        }
        sleep(POLL).await;
    }
    disk.empty()?;
    let revoke = async || target.command(&["key", "revoke", spare]).await.is_ok();
    let revoked = seconds_until(revoke).await;
    let is_refused = async || status(target, spare).await == Some(401);
    let refused = seconds_until(is_refused).await;
    Ok(vec![
        Figure::none("requests with a known key that failed meanwhile", failed),
        Figure::none("/readyz without a word about the store meanwhile", silent),
        Figure::new("with room again: a key is revoked after", revoked, "s", REFUSED_S_MAX),
        Figure::new("and refused after", refused, "s", REFUSED_S_MAX),
    ])
}

/// Returns the status of a request with a key that is no usage.
async fn status(target: &Target, key: &str) -> Option<u16> {
    Some(target.get("/v1/servers", Some(key)).await.ok()?.0)
}
