//! Notes when a connection was last used, and tells when it has used up its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::Version;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_util::io::{InspectReader, InspectWriter};

/// The longest time without a request. Longer than load balancers keep their connections, so that
/// they close first.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// The same for a connection on which no request has authenticated yet. Between the usual intervals
/// of health checks, so that a check does not meet the end of its connection.
const UNAUTHENTICATED_IDLE_MAX: Duration = Duration::from_secs(12);
/// The same once the client has been told to leave: time enough for its last frames.
const LEAVING_IDLE_MAX: Duration = Duration::from_secs(5);
/// The time without a request after which a connection over HTTP/1 is idle. Between the usual
/// intervals of calls, so that buffers are not given back and taken for each.
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// Pings and settings of HTTP/2 are shorter than this, and are no use of a connection.
const CONTROL_FRAMES_MAX: usize = 64;
/// Marks that no head is arriving.
const NO_HEAD: u64 = u64::MAX;

/// The use of one connection, in atomics of its own.
///
/// hyper has a limit for the head of a request, but it also counts the time between two requests:
/// it would cut the idle connections that load balancers keep, and it does not start before the
/// first bytes arrive. So the time is kept here. A head must be complete within the limit from its
/// first byte; the first head, from the start of the connection. Without a request, the limit is
/// that of idleness; while a handler runs, there is none.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The start of the listener, to which all times of its connections refer.
    epoch: Instant,
    head_max: Duration,
    /// The last progress: a request, a part of a response. In milliseconds since `epoch`, as below.
    last: AtomicU64,
    /// When the first byte of an unfinished head came. HTTP/1 only, except for the first head.
    head: AtomicU64,
    /// Requests whose handlers run.
    handlers: AtomicU32,
    /// Requests that wait for their turn to begin.
    waiting: AtomicU32,
    /// Requests whose responses are not taken to their end, those with handlers included.
    open: AtomicU32,
    /// The memory that these requests take.
    open_bytes: AtomicUsize,
    is_http2: AtomicBool,
    is_authenticated: AtomicBool,
    is_leaving: AtomicBool,
    /// True while the client does not take all that is written.
    is_blocked: AtomicBool,
}

impl Activity {
    pub(crate) fn new(epoch: Instant, head_max: Duration) -> Self {
        let now = millis_since(epoch);
        Self {
            epoch,
            head_max,
            last: AtomicU64::new(now),
            head: AtomicU64::new(now),
            handlers: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            open: AtomicU32::new(0),
            open_bytes: AtomicUsize::new(0),
            is_http2: AtomicBool::new(false),
            is_authenticated: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
        }
    }

    /// Notes that a request's head is complete, and how much memory the request takes. Returns how
    /// many wait for their turn before it.
    pub(crate) fn request_begins(&self, version: Version, bytes: usize) -> u32 {
        self.open_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.is_http2.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.handlers.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.head.store(NO_HEAD, Ordering::Relaxed);
        self.progress();
        self.waiting.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that a request has had its turn, or that its caller has left.
    pub(crate) fn turn_ends(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that the response is ready to be written, or that its caller has left.
    pub(crate) fn handler_ends(&self) {
        self.progress();
        self.handlers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that the response was taken, or that its caller has left.
    pub(crate) fn response_ends(&self, bytes: usize) {
        self.open_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) {
        self.last.store(millis_since(self.epoch), Ordering::Relaxed);
    }

    pub(crate) fn set_authenticated(&self, is: bool) {
        self.is_authenticated.store(is, Ordering::Relaxed);
    }

    /// Notes that the client was told to leave.
    pub(crate) fn set_leaving(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.progress();
    }

    /// Notes whether the client takes what is written.
    pub(crate) fn set_blocked(&self, is: bool) {
        self.is_blocked.store(is, Ordering::Relaxed);
    }

    /// Returns true while a head is arriving, and before the first one.
    pub(crate) fn is_in_head(&self) -> bool {
        self.head.load(Ordering::Relaxed) != NO_HEAD
    }

    /// Returns true while a request is open.
    pub(crate) fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Returns the memory that open requests take.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open_bytes.load(Ordering::Relaxed)
    }

    /// Returns the time of the last progress, in milliseconds since the epoch of the listener.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Waits until the connection has used up its time.
    pub(crate) async fn expired(&self) {
        loop {
            let now = Instant::now();
            let limit = self.limit().unwrap_or(now + IDLE_MAX);
            if limit <= now {
                return;
            }
            // A head may begin at any moment; wake before its time can be over.
            sleep_until(limit.min(now + self.head_max)).await;
        }
    }

    /// Waits until nothing has been under way for a while.
    pub(crate) async fn idle(&self) {
        loop {
            let now = Instant::now();
            let is_blocked = self.is_blocked.load(Ordering::Relaxed);
            let idle_at = match self.is_busy() || self.is_in_head() || is_blocked {
                true => now + IDLE_AFTER,
                false => self.epoch + Duration::from_millis(self.last()) + IDLE_AFTER,
            };
            if idle_at <= now {
                return;
            }
            sleep_until(idle_at).await;
        }
    }

    /// Returns when the connection will have used up its time, if nothing happens until then.
    fn limit(&self) -> Option<Instant> {
        if self.handlers.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let (since, max) = match self.head.load(Ordering::Relaxed) {
            NO_HEAD => (self.last(), self.idle_max()),
            head => (head, self.head_max),
        };
        Some(self.epoch + Duration::from_millis(since) + max)
    }

    fn idle_max(&self) -> Duration {
        if self.is_leaving.load(Ordering::Relaxed) && !self.is_busy() {
            LEAVING_IDLE_MAX
        } else if self.is_authenticated.load(Ordering::Relaxed) {
            IDLE_MAX
        } else {
            UNAUTHENTICATED_IDLE_MAX
        }
    }

    /// Notes that bytes have come: a head, if no request is open.
    pub(crate) fn bytes_read(&self) {
        let is_http1 = !self.is_http2.load(Ordering::Relaxed);
        if is_http1 && self.handlers.load(Ordering::Relaxed) == 0 && !self.is_in_head() {
            self.head.store(millis_since(self.epoch), Ordering::Relaxed);
        }
    }

    /// Restarts the time: a connection that still sends a long response is not idle.
    fn bytes_written(&self, bytes: usize) {
        if self.is_http2.load(Ordering::Relaxed) && bytes <= CONTROL_FRAMES_MAX {
            return;
        }
        self.progress();
        if self.is_in_head() {
            self.head.store(self.last(), Ordering::Relaxed);
        }
    }
}

/// Returns the milliseconds since `epoch`.
pub(super) fn millis_since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Reports the traffic of a stream.
pub(crate) fn watched<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    activity: Arc<Activity>,
) -> impl AsyncRead + AsyncWrite + Unpin {
    let reading = activity.clone();
    let stream = InspectReader::new(stream, move |bytes: &[u8]| {
        if !bytes.is_empty() {
            reading.bytes_read();
        }
    });
    InspectWriter::new(stream, move |bytes: &[u8]| activity.bytes_written(bytes.len()))
}

#[cfg(test)]
#[path = "tests/activity.rs"]
mod tests;
