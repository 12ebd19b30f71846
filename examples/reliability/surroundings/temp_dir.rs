//! A directory for temporary files that takes none: servers with a private directory cannot start.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::seconds_until;
use super::tmpfs::Tmpfs;
use crate::figure::Figure;
use crate::rows::{Shown, beside};
use crate::target::{Setup, Target};

/// Room for the directories of two servers, but not for more than a few further files.
const DISK: &str = "size=64k,nr_inodes=64";
/// For so long nothing can be written.
const TIME: Duration = Duration::from_secs(3);
/// A server in quarantine is started every 30 s.
const HEALED_S_MAX: f64 = 35.0;
/// Callers are told the reason; the directory and the cause are for the operator.
const REASON: &str = "its private directory could not be made";
const DEADLINE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
pub enum Obstacle {
    Full,
    ReadOnly,
}

pub async fn show(obstacle: Obstacle) -> Result<Shown> {
    let disk = match Tmpfs::mount(DISK)? {
        Ok(disk) => disk,
        Err(reason) => return Ok(Shown::NotRun(reason)),
    };
    let env = vec![("TMPDIR", disk.path().display().to_string())];
    let target = Target::start(Setup { env, ..Setup::default() }).await?;
    let round = beside(&target, async {
        match obstacle {
            Obstacle::Full => disk.fill_with_files()?,
            Obstacle::ReadOnly => disk.remount("ro")?,
        }
        let (untyped, unnamed) = look(&target).await?;
        match obstacle {
            Obstacle::Full => disk.empty()?,
            Obstacle::ReadOnly => disk.remount("rw")?,
        }
        let works = async || {
            let answer = target.call("raw", "{}".to_owned(), DEADLINE).await;
            answer.is_ok_and(|answer| answer.text().is_some())
        };
        let healed = seconds_until(works).await;
        Ok(vec![
            Figure::none("calls that did not fail with a code", untyped),
            Figure::none("GET /v1/servers/bad without the reason", unnamed),
            Figure::new("with room again: the server works after", healed, "s", HEALED_S_MAX),
        ])
    })
    .await?;
    target.stop().await;
    Ok(Shown::Round(round))
}

/// Calls the server, which cannot start. Returns how many answers had no code, and one if what the
/// gateway says of the server never names the reason.
async fn look(target: &Target) -> Result<(usize, usize)> {
    let (end, mut untyped, mut unnamed) = (Instant::now() + TIME, 0, 1);
    while Instant::now() < end {
        let answer = target.call("raw", "{}".to_owned(), DEADLINE).await?;
        untyped += usize::from(answer.code.is_none());
        if target.view().await?.to_string().contains(REASON) {
            unnamed = 0;
        }
        sleep(POLL).await;
    }
    Ok((untyped, unnamed))
}
