//! Runs long computations on threads of their own, so that they do not delay other tasks.

use std::future::pending;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// Longer messages are offloaded. Reading 16 MiB takes milliseconds, in which a worker would serve
/// nobody else; handing over a short message costs more than reading it.
pub const LONG: usize = 256 * 1024;

/// First come, first served. Half as many as processors, so that the runtime's workers keep the
/// other half.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(permits()));

fn permits() -> usize {
    (available_parallelism().map_or(1, NonZero::get) / 2).max(1)
}

/// Runs `work` on a blocking thread, once there is a permit.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let permit = PERMITS.acquire().await.expect("there are always permits");
    let work = move || {
        // Held as long as the work runs, even if nobody waits for it any more.
        let _permit = permit;
        work()
    };
    match spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime ends, and this task with it.
        Err(Err(_)) => pending().await,
    }
}

/// Runs `work` for a message of `len` bytes; offloads it if the message is long.
pub async fn offload_if_long<T: Send + 'static>(
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if len <= LONG { work() } else { offload(work).await }
}

#[cfg(test)]
pub mod testing {
    use std::pin::pin;
    use std::sync::mpsc::channel;

    use futures_util::future::poll_immediate;
    use tokio::runtime::Builder;
    use tokio::task::spawn_blocking;

    /// Returns whether some of the work is offloaded: then it waits for a free thread.
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
        // One thread runs one job at a time.
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
        // Its permit comes back, as do those of the others.
        drop(others);
        drop(PERMITS.acquire_many(permits() as u32).await.unwrap());
    }
}
