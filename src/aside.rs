//! What would hold up others is done aside, by threads that have nothing else to do.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::{JoinError, spawn_blocking};

/// A message that is longer than this is read aside. One of 16 MiB takes milliseconds, in which a worker of the runtime would do
/// nothing for anybody else; handing over a short one takes longer than reading it.
pub const LONG: usize = 256 * 1024;

/// Does it aside.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime ends, and with it whoever waits here.
        Err(Err(_)) => pending().await,
    }
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
    pub fn is_done_aside(work: impl Future) -> bool {
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
