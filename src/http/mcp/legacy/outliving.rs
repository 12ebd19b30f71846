//! Keeps a legacy call running after its client has disconnected: the client may reconnect.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::gateway::{CallError, Reply};

/// How long a call goes on after its client has disconnected.
const ABANDONED_MAX: Duration = Duration::from_secs(60);

/// A call that outlives its response: when dropped, the call goes on in a task of its own, and ends
/// some time after nobody can get its answer any more.
pub(super) struct Outliving {
    call: Option<Pin<Box<dyn Future<Output = LegacyOutcome> + Send>>>,
}

/// `None` if the call was cancelled.
pub(super) type LegacyOutcome = Option<Result<Reply, CallError>>;

impl Outliving {
    pub(super) fn new(call: impl Future<Output = LegacyOutcome> + Send + 'static) -> Self {
        Self { call: Some(Box::pin(call)) }
    }
}

impl Future for Outliving {
    type Output = LegacyOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LegacyOutcome> {
        let call = self.call.as_mut().expect("not polled after its end");
        let outcome = ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Outliving {
    fn drop(&mut self) {
        // Without a runtime the gateway is ending, and its calls with it.
        if let Some(call) = self.call.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(ABANDONED_MAX, call));
        }
    }
}
