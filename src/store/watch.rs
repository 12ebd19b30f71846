//! Follows the file of a SQLite store that is deleted or replaced while it is open. One task looks
//! at the file and publishes what it saw; queries only read that.
//!
//! - A file is opened only when it is whole: a store from its first page to its last, unchanged
//!   between two looks. Until then the store is away.
//! - The connections of the old file are closed after those of the new one are in their place. If
//!   the old file comes back first, they are used again.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::file::{DatabaseFile, FileState, Seen};
use super::open::Opened;
use super::{QUERY_TIMEOUT, Result, StoreError, StoreInner, check};

/// A file that is being copied grows between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks at the file until the store is closed or dropped.
pub(super) async fn watch(store: Weak<StoreInner>) {
    let mut before = None;
    loop {
        sleep(LOOK_EVERY).await;
        let Some(store) = store.upgrade() else { return };
        let opened = store.opened.load_full();
        let Some(file) = opened.file.as_ref().filter(|_| !opened.pool.is_closed()) else { return };
        let state = store.look(file).await;
        let replaced = if let Ok(FileState::Replaced(seen)) = &state { Some(*seen) } else { None };
        let outcome = match state {
            Ok(state) => store.follow(&opened, file, state, before).await,
            Err(error) => Err(unusable(file, &error)),
        };
        before = replaced;
        store.publish(outcome);
    }
}

impl StoreInner {
    /// Looks at the file once, however long that takes. A file system that hangs holds one thread
    /// only, and the store is away meanwhile.
    async fn look(&self, file: &Arc<DatabaseFile>) -> io::Result<FileState> {
        let looked = file.clone();
        let mut look = spawn_blocking(move || looked.look());
        if let Ok(state) = timeout(QUERY_TIMEOUT, &mut look).await {
            return state?;
        }
        let path = file.path().display();
        let cause = format!("the file system of {path} gives no answer");
        self.publish(Err(StoreError::Unavailable(cause)));
        look.await?
    }

    async fn follow(
        &self,
        opened: &Opened,
        file: &Arc<DatabaseFile>,
        state: FileState,
        before: Option<Seen>,
    ) -> Result<()> {
        let path = file.path().display();
        match state {
            FileState::Same => Ok(()),
            FileState::Gone => Err(StoreError::Unavailable(format!(
                "the file {path} is gone; put it back, or restore a backup"
            ))),
            FileState::Replaced(seen) if before == Some(seen) => {
                let reopened = self.reopen(opened, file, seen);
                reopened.await.inspect_err(|error| tracing::debug!(%error, "not opened anew"))
            }
            FileState::Replaced(_) => Err(StoreError::Unavailable(format!(
                "the file {path} was replaced; it is opened when it no longer changes"
            ))),
        }
    }

    /// Opens the file that has replaced the opened one. May take as long as its migrations.
    async fn reopen(&self, old: &Opened, file: &Arc<DatabaseFile>, seen: Seen) -> Result<()> {
        self.publish(Err(StoreError::Unavailable(format!(
            "the file {} was replaced, and is being opened",
            file.path().display()
        ))));
        check::must_be_whole(&self.url, seen.has_log).await?;
        let aside = file.clone();
        let aside = spawn_blocking(move || aside.set_companions_aside()).await;
        aside.map_err(io::Error::from).flatten().map_err(|error| unusable(file, &error))?;
        let opened = old.open_again(&self.url, self.hash_key.as_ref()).await?;
        self.opened.store(Arc::new(opened));
        self.publish(Ok(()));
        let path = file.path().display();
        tracing::warn!(%path, "the store's file was replaced: opened anew");
        let _ = timeout(QUERY_TIMEOUT, old.pool.close()).await;
        Ok(())
    }

    fn publish(&self, outcome: Result<()>) {
        self.away.store(outcome.err().map(|error| Arc::new(cause(error))));
    }
}

fn unusable(file: &DatabaseFile, error: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("cannot use the file {}: {error}", file.path().display()))
}

/// Returns the cause without the words that every error of its kind begins with.
fn cause(error: StoreError) -> String {
    match error {
        StoreError::Unavailable(cause) => cause,
        other => other.to_string(),
    }
}
