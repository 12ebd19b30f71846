//! Frames for viewers: one task looks a few times a second, however many viewers there are. It
//! begins with the first one and ends with the last.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::time::sleep;

use super::Trunk;
use super::frame::{Frame, Framer};
use super::snapshot::{Clocks, Snapshot};

/// The shortest time between two frames.
const FRAME_EVERY: Duration = Duration::from_millis(200);
/// After a large frame the next one waits, so that a stream stays under so many bytes a second.
const BYTES_PER_SECOND: usize = 150_000;
/// Frames that may wait for a slow viewer. It then begins again with a whole one.
const FRAMES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Feed {
    running: Mutex<Option<Running>>,
}

struct Running {
    frame: Arc<Frame>,
    sender: Sender<Bytes>,
}

/// Somebody who looks, until dropped.
pub struct Viewer {
    trunk: Trunk,
    receiver: Option<Receiver<Bytes>>,
}

/// The next part of the stream to a viewer.
#[derive(Clone, Debug)]
pub enum Shown {
    /// The whole trunk. Forget what was there before.
    Whole(Bytes),
    /// The difference to the message before.
    Change(Bytes),
}

impl Viewer {
    pub(super) fn new(trunk: Trunk) -> Self {
        Self { trunk, receiver: None }
    }

    /// Waits for the next message. Cancel-safe.
    pub async fn next(&mut self) -> Shown {
        loop {
            let Some(receiver) = &mut self.receiver else {
                let (whole, receiver) = self.trunk.join();
                self.receiver = Some(receiver);
                return Shown::Whole(whole);
            };
            match receiver.recv().await {
                Ok(change) => return Shown::Change(change),
                // It was too slow, or the task has failed.
                Err(_) => self.receiver = None,
            }
        }
    }
}

impl Trunk {
    /// Returns the trunk now, and what comes after that.
    fn join(&self) -> (Bytes, Receiver<Bytes>) {
        let mut running = self.inner.feed.running.lock();
        let running = running.get_or_insert_with(|| {
            let mut looking = Looking { clocks: Clocks::now(), framer: Framer::default() };
            let frame = Arc::new(looking.frame(self));
            let sender = broadcast::channel(FRAMES_MAX).0;
            tokio::spawn(look(self.clone(), looking, sender.clone()));
            Running { frame, sender }
        });
        (render(&running.frame.whole()), running.sender.subscribe())
    }
}

/// The state that one frame leaves to the next.
struct Looking {
    clocks: Clocks,
    framer: Framer,
}

impl Looking {
    fn frame(&mut self, trunk: &Trunk) -> Frame {
        let snapshot = Snapshot::take(trunk.inner.gateway.registry(), self.clocks);
        self.framer.frame(&snapshot, trunk.read(|history| history.refused()))
    }
}

/// Ends the feed, also after a panic: the next viewer begins another.
struct EndFeed(Trunk);

impl Drop for EndFeed {
    fn drop(&mut self) {
        *self.0.inner.feed.running.lock() = None;
    }
}

async fn look(trunk: Trunk, mut looking: Looking, sender: Sender<Bytes>) {
    let trunk = EndFeed(trunk);
    let mut pause = FRAME_EVERY;
    loop {
        sleep(pause).await;
        pause = FRAME_EVERY;
        let next = Arc::new(looking.frame(&trunk.0));
        let mut running = trunk.0.inner.feed.running.lock();
        let Some(running) = &mut *running else { return };
        if sender.receiver_count() == 0 {
            return;
        }
        let before = std::mem::replace(&mut running.frame, next);
        if let Some(change) = running.frame.since(&before) {
            let change = render(&change);
            pause =
                pause.max(Duration::from_secs_f64(change.len() as f64 / BYTES_PER_SECOND as f64));
            // Under the lock: a viewer that joins has either this frame or this change.
            let _ = sender.send(change);
        }
    }
}

fn render(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("frames are plain data").into()
}
