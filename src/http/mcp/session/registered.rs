//! A request of a session's client, or its stream, while it lasts.

use std::sync::Arc;

use tokio::time::Instant;

use super::Session;

/// A request that is being answered, or the session's open stream. Registered until dropped.
pub(crate) struct Registered {
    pub(crate) session: Arc<Session>,
    pub(super) number: u64,
    /// `None` if it cannot be cancelled.
    pub(super) id: Option<String>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        state.last_used = Instant::now();
        state.request_streams.retain(|(number, _)| *number != self.number);
        state.session_stream.take_if(|(number, _)| *number == self.number);
        if let Some(id) = &self.id
            && state.running.get(id).is_some_and(|(number, _)| *number == self.number)
        {
            state.running.remove(id);
        }
    }
}
