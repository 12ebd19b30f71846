//! What would hold up others is done aside, by threads that have nothing else to do.

use std::future::pending;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// A message that is longer than this is read aside. One of 16 MiB takes milliseconds, in which a worker of the runtime would do
/// nothing for anybody else; handing over a short one takes longer than reading it.
pub const LONG: usize = 256 * 1024;

/// Turns to do something aside, first come, first served. There are half as many as processors, which all the process shares and
/// so do these: the workers keep the other half, and names are looked up and programs started by threads of the same pool.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(permits()));

fn permits() -> usize {
    (available_parallelism().map_or(1, NonZero::get) / 2).max(1)
}

/// Does it aside, when it is its permit.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let permit = PERMITS.acquire().await.expect("there are always permits");
    let work = move || {
        // As long as the work, whether or not anybody still waits for that.
        let _permit = permit;
        work()
    };
    match spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime ends, and with it whoever waits here.
        Err(Err(_)) => pending().await,
    }
}

/// Does what is to be done with a message of `len` bytes; aside, if it is long.
pub async fn offload_if_long<T: Send + 'static>(
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if len <= LONG { work() } else { offload(work).await }
}

/// To see that something is done aside.
#[cfg(test)]
pub mod testing {
    use std::pin::pin;
    use std::sync::mpsc::channel;

    use futures_util::future::poll_immediate;
    use tokio::runtime::Builder;
    use tokio::task::spawn_blocking;

    /// Whether some of it is done aside: it does not end as long as there is no thread for that.
    pub fn is_offloaded(work: impl Future) -> bool {
        let runtime =
            Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, until) = channel::<()>();
            let busy = spawn_blocking(move || until.recv());
            let mut work = pin!(work);
            let is_aside = poll_immediate(&mut work).await.is_none();
            drop(release);
            let _ = busy.await;
            if is_aside {
                work.await;
            }
            is_aside
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use futures_util::future::poll_immediate;
    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn nothing_is_done_aside_before_its_turn() {
        // One thread does one after the other.
        let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let others = PERMITS.acquire_many(permits() as u32).await.unwrap();
            let is_done = Arc::new(AtomicBool::new(false));
            let done = is_done.clone();
            let mut work = pin!(offload(move || done.store(true, Ordering::Relaxed)));
            assert!(poll_immediate(&mut work).await.is_none());
            spawn_blocking(|| ()).await.unwrap();
            assert!(!is_done.load(Ordering::Relaxed));
            drop(others);
            work.await;
            assert!(is_done.load(Ordering::Relaxed));
        });
    }

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_its_work_whoever_waits_for_it() {
        let others = PERMITS.acquire_many(permits() as u32 - 1).await.unwrap();
        let (release, until) = channel::<()>();
        let (begin, begun) = oneshot::channel();
        let waiting = tokio::spawn(offload(move || {
            let _ = begin.send(());
            until.recv()
        }));
        begun.await.unwrap();
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert!(PERMITS.try_acquire().is_err());
        drop(release);
        // It comes back, and so do those of the others.
        drop(others);
        drop(PERMITS.acquire_many(permits() as u32).await.unwrap());
    }
}
