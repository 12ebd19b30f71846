//! A log that nobody takes: lines are lost then, and nothing else.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::join_all;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::figure::Figure;
use crate::rows::{Shown, beside};
use crate::target::{LONG, Setup, Target};

/// Lines are forced for so long.
const TIME: Duration = Duration::from_secs(6);
const TIME_QUICK: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Calls in flight at the end, and how long they take.
const LAST_CALLS: usize = 20;
const LAST_CALL: &str = "{\"ms\":1000}";
/// The time in which all are sent.
const SENT_WITHIN: Duration = Duration::from_millis(300);
/// The time of these calls, and two seconds.
const END_S_MAX: f64 = 3.0;

/// Standard error.
#[derive(Clone, Copy)]
pub enum Log {
    Unread,
    Closed,
    Full,
}

/// A pipe that is read until told.
struct Reader {
    receiver: Arc<Receiver>,
    reading: AbortOnDropHandle<()>,
}

pub async fn show(log: Log, quick: bool) -> Result<Shown> {
    let (stderr, reader) = match log {
        Log::Unread | Log::Closed => {
            let (receiver, sender) = pipe()?;
            (Stdio::from(sender), Some(Reader::start(receiver.into())?))
        }
        Log::Full => (Stdio::from(OpenOptions::new().write(true).open("/dev/full")?), None),
    };
    let env = vec![("RUST_LOG", "debug".to_owned())];
    let target = Target::start(Setup { env, log: Some(stderr), ..Setup::default() }).await?;
    let mut unread = None;
    let mut round = beside(&target, async {
        match (log, reader) {
            (Log::Unread, Some(reader)) => unread = Some(reader.fill()?),
            (_, reader) => drop(reader),
        }
        Ok(force_lines(&target, if quick { TIME_QUICK } else { TIME }).await)
    })
    .await?;
    round.figures.extend(end(target).await);
    drop(unread);
    Ok(Shown::Round(round))
}

impl Reader {
    fn start(receiver: OwnedFd) -> Result<Self> {
        let receiver = Arc::new(Receiver::from_owned_fd(receiver)?);
        let reading = AbortOnDropHandle::new(tokio::spawn(read(receiver.clone())));
        Ok(Self { receiver, reading })
    }

    /// Reads no more, and fills the pipe to the last byte. The pipe stays open with the receiver.
    fn fill(self) -> Result<Arc<Receiver>> {
        drop(self.reading);
        // Opened anew, so that the gateway's own end still waits.
        let path = format!("/proc/self/fd/{}", self.receiver.as_raw_fd());
        let mut end = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        for len in [4096, 1] {
            let full = loop {
                if let Err(error) = end.write(&[b'\n'; 4096][..len]) {
                    break error;
                }
            };
            ensure!(full.kind() == ErrorKind::WouldBlock, full);
        }
        Ok(self.receiver)
    }
}

async fn read(receiver: Arc<Receiver>) {
    let mut lines = vec![0; 1 << 16];
    while receiver.readable().await.is_ok() {
        // Zero bytes are the end of the gateway.
        if receiver.try_read(&mut lines).is_ok_and(|len| len == 0) {
            return;
        }
    }
}

/// Has a server crash and calls fail, for each of which the gateway has lines to write.
async fn force_lines(target: &Target, time: Duration) -> Vec<Figure> {
    let (mut unhealthy, mut untyped) = (0, 0);
    let end = Instant::now() + time;
    while Instant::now() < end {
        for tool in ["exit", "no_such_tool", "error"] {
            let call = target.call(tool, "{}".to_owned(), ANSWER_WITHIN);
            let answer = timeout(ANSWER_WITHIN * 2, call).await;
            untyped += usize::from(!matches!(answer, Ok(Ok(it)) if it.code.is_some()));
        }
        let health = target.get("/healthz", None).await;
        unhealthy += usize::from(!health.is_ok_and(|(status, _)| status == 200));
        sleep(POLL).await;
    }
    vec![
        Figure::none("/healthz not answered within a second", unhealthy),
        Figure::none("calls of a server that crashes: without a code", untyped),
    ]
}

/// Ends the gateway while calls are in flight.
async fn end(target: Target) -> Vec<Figure> {
    let url = format!("http://{}/v1/servers/std/tools/sleep", target.address);
    let calls: Vec<_> = (0..LAST_CALLS)
        .map(|_| tokio::spawn(target.client().post(&url).body(LAST_CALL).timeout(LONG).send()))
        .collect();
    sleep(SENT_WITHIN).await;
    let began = Instant::now();
    let status = target.stop().await;
    let took = status.map_or(f64::INFINITY, |_| began.elapsed().as_secs_f64());
    let answers = join_all(calls).await;
    let answers = answers.into_iter().flatten().flatten();
    let lost = LAST_CALLS - answers.filter(|answer| answer.status() == 200).count();
    let failed = usize::from(status.and_then(|it| it.code()) != Some(0));
    vec![
        Figure::new("from SIGTERM to the end, with 20 calls of 1 s", took, "s", END_S_MAX),
        Figure::none("of these calls: not answered", lost),
        Figure::none("exit codes other than 0", failed),
    ]
}
