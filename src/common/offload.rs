//! Runs long computations on threads of their own, so that they do not delay other tasks.

use std::future::pending;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, block_in_place, spawn_blocking};

/// Longer messages are offloaded. Reading 16 MiB takes milliseconds, in which a worker would serve
/// nobody else; handing over a short message costs more than reading it.
pub const LONG: usize = 256 * 1024;

/// Runs long computations, first come, first served. Clones share the permits.
#[derive(Clone, Debug)]
pub struct Offload {
    permits: Arc<Semaphore>,
}

impl Offload {
    /// Allows half as many computations as processors, so that the runtime's workers keep the other
    /// half.
    pub fn new() -> Self {
        Self::with_permits(available_parallelism().map_or(1, NonZero::get) / 2)
    }

    fn with_permits(permits: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits.max(1))) }
    }

    /// Runs `work` on a blocking thread, once there is a permit.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let permit = self.permits.clone().acquire_owned().await.expect("it is never closed");
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

    /// Runs `work` for a message of `len` bytes on this thread: the work may borrow the message.
    /// If the message is long, other tasks of this worker move to another thread first. `turn` has
    /// one permit for each tenant: a tenant with many long messages does not hold up others' work.
    pub async fn in_place<T>(&self, turn: &Semaphore, len: usize, work: impl FnOnce() -> T) -> T {
        if len <= LONG {
            return work();
        }
        let _turn = turn.acquire().await.expect("it is never closed");
        let _permit = self.permits.acquire().await.expect("it is never closed");
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::MultiThread => block_in_place(work),
            // A runtime of one thread has no other.
            _ => work(),
        }
    }

    /// Runs `work` for a message of `len` bytes; offloads it if the message is long.
    pub async fn run_if_long<T: Send + 'static>(
        &self,
        len: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if len <= LONG { work() } else { self.run(work).await }
    }
}

impl Default for Offload {
    fn default() -> Self {
        Self::new()
    }
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
            let is_offloaded = poll_immediate(&mut work).await.is_none();
            drop(release);
            let _ = busy.await;
            if is_offloaded {
                work.await;
            }
            is_offloaded
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use futures_util::future::poll_immediate;
    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn nothing_is_offloaded_without_a_permit() {
        let offload = Offload::with_permits(2);
        // One thread runs one job at a time.
        let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let others = offload.permits.acquire_many(2).await.unwrap();
            let is_done = Arc::new(AtomicBool::new(false));
            let done = is_done.clone();
            let mut work = pin!(offload.run(move || done.store(true, Ordering::Relaxed)));
            assert!(poll_immediate(&mut work).await.is_none());
            spawn_blocking(|| ()).await.unwrap();
            assert!(!is_done.load(Ordering::Relaxed));
            drop(others);
            work.await;
            assert!(is_done.load(Ordering::Relaxed));
        });
    }

    #[test]
    fn long_work_in_place_leaves_the_worker_to_others_and_takes_turns_by_tenant() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (release, until) = channel::<()>();
        let (offload, turn) = (Offload::with_permits(2), Arc::new(Semaphore::new(1)));
        let in_place = |work: Box<dyn FnOnce() + Send>| {
            let (offload, turn) = (offload.clone(), turn.clone());
            runtime.spawn(async move { offload.in_place(&turn, LONG + 1, work).await })
        };
        let (begin, begun) = channel();
        let first = in_place(Box::new(move || {
            begin.send(()).unwrap();
            until.recv().unwrap();
        }));
        begun.recv().unwrap();
        // The only worker is free for others, and the tenant has no second turn.
        let second = in_place(Box::new(|| ()));
        runtime.block_on(runtime.spawn(async {})).unwrap();
        let others = Semaphore::new(1);
        runtime.block_on(offload.in_place(&others, LONG + 1, || ()));
        assert!(!second.is_finished());
        release.send(()).unwrap();
        runtime.block_on(async { (first.await.unwrap(), second.await.unwrap()) });
    }

    #[tokio::test]
    async fn a_permit_is_held_as_long_as_the_work_runs_whoever_waits_for_it() {
        let offload = Offload::with_permits(1);
        let (release, until) = channel::<()>();
        let (begin, begun) = oneshot::channel();
        let shared = offload.clone();
        let work = async move {
            shared
                .run(move || {
                    let _ = begin.send(());
                    until.recv()
                })
                .await
        };
        let waiting = tokio::spawn(work);
        begun.await.unwrap();
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert!(offload.permits.try_acquire().is_err());
        drop(release);
        drop(offload.permits.acquire().await.unwrap());
    }
}
