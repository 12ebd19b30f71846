//! What one listener has not been told yet.
//!
//! Nothing is queued per change: a mailbox says *what* has changed since it was last emptied, so it is bounded by what
//! was asked for, however slow its reader and however busy the server.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::common::ids::ServerId;
use crate::protocol::mcp::results::ServerCapabilities;

/// A list that a server may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list` and `resources/templates/list`
    Resources,
}

/// Which lists somebody wants to know about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// The tools.
    pub tools: bool,
    /// The prompts.
    pub prompts: bool,
    /// The resources and their templates.
    pub resources: bool,
}

impl Lists {
    /// All of them.
    pub const ALL: Self = Self { tools: true, prompts: true, resources: true };

    /// Those that a server has which can do this.
    pub(crate) fn of(capabilities: &ServerCapabilities) -> Self {
        Self {
            tools: capabilities.tools.is_some(),
            prompts: capabilities.prompts.is_some(),
            resources: capabilities.resources.is_some(),
        }
    }

    /// Those of either.
    pub fn or(self, other: Self) -> Self {
        Self {
            tools: self.tools || other.tools,
            prompts: self.prompts || other.prompts,
            resources: self.resources || other.resources,
        }
    }

    pub(crate) fn slot(&mut self, list: List) -> &mut bool {
        match list {
            List::Tools => &mut self.tools,
            List::Prompts => &mut self.prompts,
            List::Resources => &mut self.resources,
        }
    }

    pub(crate) fn has(mut self, list: List) -> bool {
        *self.slot(list)
    }
}

/// What has changed since somebody last looked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) lists: Lists,
    /// With their servers.
    pub(crate) resources: BTreeSet<(ServerId, String)>,
}

/// One piece of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A list is another now.
    List(List),
    /// A resource of a server is.
    Resource(ServerId, String),
}

impl News {
    fn take(&mut self) -> Option<Change> {
        for list in [List::Tools, List::Prompts, List::Resources] {
            if std::mem::take(self.lists.slot(list)) {
                return Some(Change::List(list));
            }
        }
        let (server, uri) = self.resources.pop_first()?;
        Some(Change::Resource(server, uri))
    }
}

/// One listener's news.
#[derive(Debug, Default)]
pub struct Mailbox {
    news: Mutex<News>,
    arrived: Notify,
}

impl Mailbox {
    /// Waits until something has changed, and takes that one thing: what a reader does not get to tell is still there
    /// for the next. Safe to give up.
    pub async fn next(&self) -> Change {
        loop {
            let arrived = self.arrived.notified();
            if let Some(change) = self.news.lock().take() {
                return change;
            }
            arrived.await;
        }
    }

    /// These lists are others now.
    pub fn lists_changed(&self, lists: Lists) {
        self.put(|news| news.lists = news.lists.or(lists));
    }

    /// Forgets a resource that is not wanted any more.
    pub(crate) fn take_back(&self, resource: &(ServerId, String)) {
        self.news.lock().resources.remove(resource);
    }

    /// Forgets all resources of a server.
    pub(crate) fn forget(&self, server: &ServerId) {
        self.news.lock().resources.retain(|(of, _)| of != server);
    }

    pub(crate) fn put(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock());
        self.arrived.notify_one();
    }
}
