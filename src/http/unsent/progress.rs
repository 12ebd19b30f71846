//! The progress of responses: when bytes of them were last written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::gateway::Held;

/// A response or a connection with unsent bytes and without progress is ended after this time.
pub(super) const STUCK: Duration = Duration::from_secs(60);
/// How often a connection is looked at.
const CHECK: Duration = Duration::from_secs(15);
/// The checks that a piece may stay with h2 after its stream was given away.
const LEFT_CHECKS: u32 = 8;

/// The pieces of one connection that are not written yet, and when bytes were last written.
pub(crate) struct ConnectionProgress {
    began: Instant,
    /// In milliseconds since `began`.
    last: AtomicU64,
    /// Two counts of pieces, by the generation in which each began or was last written.
    pieces: [AtomicUsize; 2],
    generation: AtomicUsize,
}

/// The progress of one response.
pub(crate) struct ResponseProgress {
    connection: Arc<ConnectionProgress>,
    /// Milliseconds since the connection began.
    last: AtomicU64,
    pieces: AtomicUsize,
    held: Option<Held>,
}

/// One piece, from the moment in which hyper takes it until it is written or given up.
pub(super) struct PieceProgress {
    response: Arc<ResponseProgress>,
    /// `None` for a last byte, which waits in hyper until all before it can be written.
    generation: Option<usize>,
}

impl ConnectionProgress {
    pub(crate) fn begin() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
            pieces: Default::default(),
            generation: AtomicUsize::new(0),
        })
    }

    /// Notes that the socket took bytes.
    pub(crate) fn bytes_written(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// Waits until the connection must be closed: pieces are unsent, and the socket takes nothing,
    /// as over HTTP/1 when the client does not read. HTTP/2 writes a ping twice a minute, so there
    /// it means the same. Or h2 has kept a piece for two minutes: hyper had given its stream
    /// away, so that only the end of the connection frees the piece.
    pub(crate) async fn stuck(&self) {
        let mut left = 0;
        loop {
            sleep(CHECK).await;
            if self.unsent() == 0 {
                left = 0;
                continue;
            }
            let last = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed));
            left += 1;
            if last.elapsed() >= STUCK || (left % LEFT_CHECKS == 0 && !self.next_generation()) {
                return;
            }
        }
    }

    fn unsent(&self) -> usize {
        self.pieces.iter().map(|pieces| pieces.load(Ordering::Relaxed)).sum()
    }

    /// Begins the next generation, unless pieces of the one before the current are left.
    fn next_generation(&self) -> bool {
        let current = self.generation.load(Ordering::Relaxed);
        let is_over = self.pieces[(current + 1) % 2].load(Ordering::Relaxed) == 0;
        if is_over {
            self.generation.store(current + 1, Ordering::Relaxed);
        }
        is_over
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl ResponseProgress {
    /// Watches a response of this connection; `held` is the room of its whole body.
    pub(super) fn new(connection: Arc<ConnectionProgress>, held: Option<Held>) -> Arc<Self> {
        let (last, pieces) = (AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Self { connection, last, pieces, held })
    }

    /// Returns whether the room of its whole body is held.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Returns whether pieces of other responses on the connection are unsent.
    pub(super) fn has_company(&self) -> bool {
        self.connection.unsent() > 0
    }

    /// Returns when the response is stuck if none of its bytes is written before; `None` while all
    /// of them are written.
    pub(super) fn stuck_at(&self) -> Option<Instant> {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let is_unsent = self.pieces.load(Ordering::Relaxed) > 0;
        is_unsent.then(|| self.connection.began + last + STUCK)
    }
}

impl PieceProgress {
    pub(super) fn begin(response: &Arc<ResponseProgress>, is_last_byte: bool) -> Self {
        let connection = &response.connection;
        let now = connection.now();
        response.last.store(now, Ordering::Relaxed);
        response.pieces.fetch_add(1, Ordering::Relaxed);
        if connection.unsent() == 0 {
            connection.last.store(now, Ordering::Relaxed);
        }
        let generation = (!is_last_byte).then(|| {
            let generation = connection.generation.load(Ordering::Relaxed);
            connection.pieces[generation % 2].fetch_add(1, Ordering::Relaxed);
            generation
        });
        Self { response: response.clone(), generation }
    }

    /// Notes that bytes of the piece were written.
    pub(super) fn advanced(&mut self) {
        let connection = &self.response.connection;
        self.response.last.store(connection.now(), Ordering::Relaxed);
        let current = connection.generation.load(Ordering::Relaxed);
        if let Some(generation) = &mut self.generation
            && *generation != current
        {
            connection.pieces[current % 2].fetch_add(1, Ordering::Relaxed);
            connection.pieces[*generation % 2].fetch_sub(1, Ordering::Relaxed);
            *generation = current;
        }
    }
}

impl Drop for PieceProgress {
    fn drop(&mut self) {
        self.response.pieces.fetch_sub(1, Ordering::Relaxed);
        if let Some(generation) = self.generation {
            self.response.connection.pieces[generation % 2].fetch_sub(1, Ordering::Relaxed);
        }
    }
}
