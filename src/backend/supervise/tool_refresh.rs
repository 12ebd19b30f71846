//! The list of tools of a run that serves, as its server has it now.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Keeper, Serving};
use crate::backend::changes::mailbox::List;
use crate::backend::instance::redaction::Redaction;
use crate::backend::instance::tools::ToolSet;

/// How long a refresh may take.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between hearing of a change and asking for the list; changes often come together.
const REFRESH_PAUSE: Duration = Duration::from_millis(250);

impl Keeper {
    /// Lists the tools again whenever the server says that they have changed. What is listed replaces what was
    /// there; a list that cannot be had leaves it. Never ends.
    pub(super) async fn keep_tools_fresh(&self, serving: &Serving) {
        let (backend, server) = (&self.backend, &self.backend.id);
        let connection = &serving.run.ready.connection;
        loop {
            connection.tools_changed().await;
            // A server that says so all the time is not asked all the time.
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
                    // So that nothing is left of tools that are gone.
                    drop(ready);
                    serving.ready.store(next.clone());
                    self.enter_ready(next, &serving.load);
                    if has_changed {
                        tracing::info!(%server, tools, "server `{server}` has changed its tools");
                        backend.changes().list_changed(List::Tools);
                    }
                }
                Err(error) => {
                    let error = Redaction::new(&backend.secrets).story(error.to_string());
                    tracing::warn!(%server, %error, "the changed tools of server `{server}` could not be listed");
                }
            }
        }
    }
}
