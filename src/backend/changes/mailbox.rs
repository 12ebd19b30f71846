//! The changes that one listener has not read yet.
//!
//! A mailbox is a set and not a queue: it holds what has changed since it was last emptied. So its
//! size is bounded by the subscription, however slow the reader and however busy the server.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::common::ids::ServerId;
use crate::protocol::mcp::results::ServerCapabilities;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list` and `resources/templates/list`
    Resources,
}

/// A set of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
}

impl Lists {
    pub const ALL: Self = Self { tools: true, prompts: true, resources: true };

    /// Returns the lists that a server with these capabilities has.
    pub(crate) fn of(capabilities: &ServerCapabilities) -> Self {
        Self {
            tools: capabilities.tools.is_some(),
            prompts: capabilities.prompts.is_some(),
            resources: capabilities.resources.is_some(),
        }
    }

    pub fn or(self, other: Self) -> Self {
        Self {
            tools: self.tools || other.tools,
            prompts: self.prompts || other.prompts,
            resources: self.resources || other.resources,
        }
    }

    pub(crate) fn flag_mut(&mut self, list: List) -> &mut bool {
        match list {
            List::Tools => &mut self.tools,
            List::Prompts => &mut self.prompts,
            List::Resources => &mut self.resources,
        }
    }

    pub(crate) fn has(mut self, list: List) -> bool {
        *self.flag_mut(list)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UnreadChanges {
    pub(crate) lists: Lists,
    pub(crate) resources: BTreeSet<(ServerId, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    List(List),
    /// The URI of a resource, and its server.
    Resource(ServerId, String),
}

impl UnreadChanges {
    fn take(&mut self) -> Option<Change> {
        for list in [List::Tools, List::Prompts, List::Resources] {
            if std::mem::take(self.lists.flag_mut(list)) {
                return Some(Change::List(list));
            }
        }
        let (server, uri) = self.resources.pop_first()?;
        Some(Change::Resource(server, uri))
    }
}

#[derive(Debug, Default)]
pub struct Mailbox {
    unread: Mutex<UnreadChanges>,
    arrived: Notify,
}

impl Mailbox {
    /// Waits for a change and takes that one. The others stay for the next reader. Cancel-safe.
    pub async fn next(&self) -> Change {
        loop {
            let arrived = self.arrived.notified();
            if let Some(change) = self.unread.lock().take() {
                return change;
            }
            arrived.await;
        }
    }

    pub fn lists_changed(&self, lists: Lists) {
        self.update(|unread| unread.lists = unread.lists.or(lists));
    }

    pub(crate) fn remove_resource(&self, resource: &(ServerId, String)) {
        self.unread.lock().resources.remove(resource);
    }

    /// Removes all resources of a server.
    pub(crate) fn remove_server(&self, server: &ServerId) {
        self.unread.lock().resources.retain(|(of, _)| of != server);
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut UnreadChanges)) {
        change(&mut self.unread.lock());
        self.arrived.notify_one();
    }
}
