//! The changes that one listener has not read yet.
//!
//! A mailbox is a set and not a queue: it holds what has changed since it was last emptied. So its
//! size is bounded by the subscription, however slow the reader and however busy the server. Parts
//! of a watched resource, and what a server says besides, count among the tenant's unsent bytes.
//! Without room for them the watched resource itself is reported.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::update::Update;
use crate::common::byte_budget::{BytePermit, TenantBytes};
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
    /// Whatever extensions notify of.
    pub extensions: bool,
}

impl Lists {
    pub const ALL: Self = Self { tools: true, prompts: true, resources: true, extensions: true };

    /// Returns the lists that a server with these capabilities has.
    pub(crate) fn of(capabilities: &ServerCapabilities) -> Self {
        Self {
            tools: capabilities.tools.is_some(),
            prompts: capabilities.prompts.is_some(),
            resources: capabilities.resources.is_some(),
            extensions: false,
        }
    }

    pub fn or(self, other: Self) -> Self {
        Self {
            tools: self.tools || other.tools,
            prompts: self.prompts || other.prompts,
            resources: self.resources || other.resources,
            extensions: self.extensions || other.extensions,
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

/// The most parts of watched resources, and updates with more than a URI, that wait.
const DETAILED_MAX: usize = 1000;
/// The memory that such an update takes beside its bytes.
const DETAILED_COST: usize = 256;
/// The most notifications of extensions that wait.
const NOTICES_MAX: usize = 100;
/// The memory that one takes beside its bytes.
const NOTICE_COST: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct UnreadChanges {
    lists: Lists,
    resources: BTreeMap<(ServerId, String), UnreadUpdate>,
    notices: VecDeque<(Box<Notice>, Option<BytePermit>)>,
    /// The updates that count among the unsent bytes.
    detailed: usize,
}

/// An updated resource that was not told of yet, without its URI.
#[derive(Debug, Default)]
struct UnreadUpdate {
    more: Option<Box<UpdateDetails>>,
    _permit: Option<BytePermit>,
    is_detailed: bool,
}

/// Members of an update beside its URI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateDetails {
    /// Members of `params`: `,"name":value` each.
    pub others: String,
    /// Members of `params._meta`, alike.
    pub meta: String,
}

/// A notification of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub method: String,
    /// JSON.
    pub params: String,
    /// The extensions that the server declares.
    pub declared: Arc<[String]>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    List(List),
    /// The URI of a resource, its server, and what the server says besides.
    Resource(ServerId, String, Option<Box<UpdateDetails>>),
    Notice(Box<Notice>),
}

impl UnreadChanges {
    fn take(&mut self) -> Option<Change> {
        for list in [List::Tools, List::Prompts, List::Resources] {
            if std::mem::take(self.lists.flag_mut(list)) {
                return Some(Change::List(list));
            }
        }
        if let Some((notice, _)) = self.notices.pop_front() {
            return Some(Change::Notice(notice));
        }
        let ((server, uri), update) = self.resources.pop_first()?;
        self.detailed -= usize::from(update.is_detailed);
        Some(Change::Resource(server, uri, update.more))
    }

    fn insert(&mut self, resource: (ServerId, String), update: UnreadUpdate) {
        self.detailed += usize::from(update.is_detailed);
        if let Some(old) = self.resources.insert(resource, update) {
            self.detailed -= usize::from(old.is_detailed);
        }
    }
}

#[derive(Debug, Default)]
pub struct Mailbox {
    unread: Mutex<UnreadChanges>,
    arrived: Notify,
    /// Counts updates with more than the URI of a watched resource.
    unsent: Option<Arc<TenantBytes>>,
}

impl Mailbox {
    /// Makes a mailbox whose updates count among these bytes, as far as the subscription does not
    /// bound them.
    pub fn new(unsent: Arc<TenantBytes>) -> Self {
        Self { unsent: Some(unsent), ..Self::default() }
    }

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

    /// Notes that a watched resource may have changed.
    pub(crate) fn resource_changed(&self, server: &ServerId, uri: &str) {
        self.update(|unread| {
            unread.resources.entry((server.clone(), uri.to_owned())).or_default();
        });
    }

    /// Notes an update of the `watched` resource, or of a part of it. Without a watched resource,
    /// the listener hears of all of them. Returns whether there was room.
    pub(crate) fn resource_updated(
        &self,
        server: &ServerId,
        watched: Option<&str>,
        update: &Update<'_>,
    ) -> bool {
        let is_plain = watched == Some(update.uri) && update.details.is_none();
        if !is_plain && let Some(detailed) = self.detailed(update) {
            self.update(|unread| unread.insert((server.clone(), update.uri.to_owned()), detailed));
            return true;
        }
        let Some(watched) = watched else { return false };
        self.resource_changed(server, watched);
        true
    }

    /// Takes room for an update that the subscription does not bound.
    fn detailed(&self, update: &Update<'_>) -> Option<UnreadUpdate> {
        if self.unread.lock().detailed >= DETAILED_MAX {
            return None;
        }
        let more = update.details.clone().map(Box::new);
        let len = more.as_ref().map_or(0, |more| more.others.len() + more.meta.len());
        let cost = update.uri.len() + len + DETAILED_COST;
        let permit = self.unsent.as_ref().map(|unsent| unsent.take(cost)).transpose().ok()?;
        Some(UnreadUpdate { more, _permit: permit, is_detailed: true })
    }

    pub(crate) fn remove_resource(&self, resource: &(ServerId, String)) {
        let mut unread = self.unread.lock();
        let removed = unread.resources.remove(resource);
        unread.detailed -= usize::from(removed.is_some_and(|update| update.is_detailed));
    }

    /// Removes all resources of a server.
    pub(crate) fn remove_server(&self, server: &ServerId) {
        let mut unread = self.unread.lock();
        let removed = unread.resources.extract_if(.., |(of, _), _| of == server);
        let detailed = removed.filter(|(_, update)| update.is_detailed).count();
        unread.detailed -= detailed;
    }

    /// Notes a notification of an extension. One that waits already is told once. Returns whether
    /// there was room.
    pub(crate) fn notified(&self, notice: &Notice) -> bool {
        let cost = notice.method.len() + notice.params.len() + NOTICE_COST;
        let has_room = {
            let unread = self.unread.lock();
            if unread.notices.iter().any(|(waiting, _)| **waiting == *notice) {
                return true;
            }
            unread.notices.len() < NOTICES_MAX
        };
        let permit = self.unsent.as_ref().map(|unsent| unsent.take(cost)).transpose();
        match permit {
            Ok(permit) if has_room => {
                let notice = Box::new(notice.clone());
                self.update(|unread| unread.notices.push_back((notice, permit)));
                true
            }
            _ => false,
        }
    }

    pub(crate) fn list_changed(&self, list: List) {
        self.update(|unread| *unread.lists.flag_mut(list) = true);
    }

    fn update(&self, change: impl FnOnce(&mut UnreadChanges)) {
        change(&mut self.unread.lock());
        self.arrived.notify_one();
    }
}
