//! Keeps the list of tools of a serving run up to date, and tells of changes of its other lists.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{InstanceSupervisor, ServingRun};
use crate::backend::changes::mailbox::List;
use crate::backend::instance::redaction::Redaction;
use crate::backend::instance::tools::ToolSet;

const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between a change and the request for the list: changes often come together, and a
/// server that announces changes all the time is not asked all the time.
const REFRESH_PAUSE: Duration = Duration::from_millis(250);

impl InstanceSupervisor {
    /// Tells listeners at once when prompts or resources have changed, and of further changes after
    /// a pause: some servers announce each item of a list. Never ends.
    pub(super) async fn tell_changed_lists(&self, serving: &ServingRun) {
        let connection = &serving.run.ready.connection;
        loop {
            let lists = connection.changed_lists().await;
            self.backend.changes().lists_may_have_changed(lists);
            sleep(REFRESH_PAUSE).await;
        }
    }

    /// Lists the tools again whenever the server says that they have changed. If that fails, the
    /// old list stays. Never ends.
    pub(super) async fn keep_tools_fresh(&self, serving: &ServingRun) {
        let (backend, server) = (&self.backend, &self.backend.id);
        let connection = &serving.run.ready.connection;
        loop {
            connection.tools_changed().await;
            sleep(REFRESH_PAUSE).await;
            let deadline = Instant::now() + REFRESH_TIMEOUT;
            let (environment, ready) = (&backend.environment, serving.ready.load_full());
            let (dialect, is_pinned) = (&ready.dialect, backend.config.pin);
            match ToolSet::list(connection, dialect, deadline, server, environment, is_pinned).await
            {
                Ok(listed) => {
                    let has_changed = !listed.is_like(&ready.tools);
                    let tools = listed.iter().count();
                    let next = Arc::new(ready.with_tools(listed));
                    // Tools that are gone are freed.
                    drop(ready);
                    serving.ready.store(next.clone());
                    self.set_ready(next, &serving.load);
                    if has_changed {
                        tracing::info!(%server, tools, "server `{server}` has changed its tools");
                        backend.changes().list_changed(List::Tools);
                    }
                }
                Err(error) => {
                    let error = Redaction::new(&backend.secrets).excerpt(error.to_string());
                    tracing::warn!(
                        %server, %error,
                        "the changed tools of server `{server}` could not be listed"
                    );
                }
            }
        }
    }
}
