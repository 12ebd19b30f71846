//! Arrivals at a fixed rate.

use std::cell::Cell;
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Arrivals due this shortly before the end are not missed when nobody takes them.
const SLACK: Duration = Duration::from_millis(5);

/// The arrivals of one client thread. Each is taken by whichever connection is free; the time it
/// was due stays, so that waiting for a free connection counts as what it is: a slow answer.
pub struct Pace {
    begin: Instant,
    interval: Duration,
    /// A timer of the system's own, since the runtime's would round to milliseconds. It is read
    /// like a pipe: eight bytes that say how many arrivals there were.
    timer: pipe::Receiver,
    due: Semaphore,
    taken: Cell<u32>,
}

impl Pace {
    /// One arrival per `interval`, from now on.
    pub fn new(interval: Duration) -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let each = Timespec {
            tv_sec: interval.as_secs().try_into()?,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let times = Itimerspec { it_interval: each, it_value: each };
        let begin = Instant::now();
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        let timer = pipe::Receiver::from_owned_fd_unchecked(timer)?;
        Ok(Self { begin, interval, timer, due: Semaphore::new(0), taken: Cell::new(0) })
    }

    /// Announces arrivals until `end`.
    pub async fn run(&self, end: Instant) -> Result<()> {
        while Instant::now() < end {
            self.timer.readable().await?;
            let mut arrivals = [0; 8];
            match self.timer.try_read(&mut arrivals) {
                Ok(_) => self.due.add_permits(u64::from_ne_bytes(arrivals).try_into()?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.due.close();
        Ok(())
    }

    /// Waits for the next arrival that nobody has taken, and tells when it was due. None after the
    /// end.
    pub async fn next(&self) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        self.taken.set(self.taken.get() + 1);
        Some(self.begin + self.interval * self.taken.get())
    }

    /// Arrivals due before `end` that nobody took.
    pub fn left_over(&self, end: Instant) -> u64 {
        let time = (end - SLACK).duration_since(self.begin);
        let due = time.as_nanos() / self.interval.as_nanos().max(1);
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.taken.get().into())
    }
}
