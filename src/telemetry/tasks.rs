//! Long-lived tasks that panic.
//!
//! No long-lived task of the gateway ends silently. A panic is logged as an error with the name of
//! its task, counted, and the work begins again.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::metrics::Metrics;

/// The pause before the work begins again: work that always panics must not take a processor.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Does `work` until it returns, and again whenever it panics. `state` must be usable after a
/// panic: its locks are released, and a change may be half done.
pub async fn restart_on_panic<S, T>(
    metrics: &Metrics,
    task: &'static str,
    state: &mut S,
    work: impl Fn(&mut S) -> BoxFuture<'_, T>,
) -> T {
    loop {
        // Within the future, since `work` may panic before it returns its own.
        let attempt = async { work(state).await };
        if let Some(done) = catch_panic(metrics, task, attempt).await {
            return done;
        }
        sleep(RESTART_PAUSE).await;
    }
}

/// Does `work` once. Returns `None` if it panics.
pub async fn catch_panic<T>(
    metrics: &Metrics,
    task: &'static str,
    work: impl Future<Output = T>,
) -> Option<T> {
    let caught = AssertUnwindSafe(work).catch_unwind().await;
    let panicked = |panic: Box<dyn Any + Send>| {
        metrics.task_panics(task).inc();
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let reason = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        tracing::error!(task, reason, "task `{task}` panicked; report it as a bug");
    };
    caught.map_err(panicked).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_before_its_first_step_begins_again() {
        let (metrics, mut attempts) = (Metrics::new(), 0);
        let done = restart_on_panic(&metrics, "test", &mut attempts, |attempts| {
            *attempts += 1;
            assert!(*attempts > 1, "planted");
            async {}.boxed()
        });
        done.await;
        assert_eq!(metrics.task_panics("test").get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_begins_again_and_is_counted() {
        let (metrics, mut attempts) = (Metrics::new(), 0);
        let done = restart_on_panic(&metrics, "test", &mut attempts, |attempts| {
            let work = async {
                *attempts += 1;
                assert!(*attempts > 3, "planted");
                "done"
            };
            work.boxed()
        });
        assert_eq!(done.await, "done");
        assert_eq!(attempts, 4);
        assert_eq!(metrics.task_panics("test").get(), 3);
        assert!(
            catch_panic(&metrics, "other", async { assert!(attempts == 0, "planted") })
                .await
                .is_none()
        );
        let text = String::from_utf8(metrics.render()).unwrap();
        assert!(text.contains("trunkline_task_panics_total{task=\"other\"} 1"), "{text}");
    }
}
