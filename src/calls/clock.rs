//! The time of records. Begins with the machine's clock and then goes on steadily: a step of that
//! clock neither forgets a call early nor keeps all of them.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Clock {
    /// In milliseconds since 1970.
    began: i64,
    began_at: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { began: jiff::Timestamp::now().as_millisecond(), began_at: Instant::now() }
    }

    /// Returns the instant of a time that is past, in milliseconds since 1970.
    pub(super) fn instant(&self, at: i64) -> Instant {
        let (now, ago) = (Instant::now(), u64::try_from(self.now() - at).unwrap_or_default());
        now.checked_sub(Duration::from_millis(ago)).unwrap_or(now)
    }

    /// Milliseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.began + i64::try_from(self.began_at.elapsed().as_millis()).unwrap_or(i64::MAX / 2)
    }
}
