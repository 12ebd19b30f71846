//! Who wants to know what changes at a server: its lists, and single resources.
//!
//! Nothing is queued per change. Each listener has a [`Mailbox`] that says *what* has changed since it was last
//! emptied, so it is bounded by what was asked for, however slow its reader and however busy the server.
//!
//! Resources are counted: the first who watches one makes the gateway subscribe at the server, the last who leaves
//! makes it unsubscribe. The server's supervisor does that, and does it again after each restart.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::ids::ServerId;
use crate::jsonrpc::envelope::ErrorObject;

/// Resources that may be watched at one server, by all tenants together.
pub const WATCHED_MAX: usize = 10_000;

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

    fn slot(&mut self, list: List) -> &mut bool {
        match list {
            List::Tools => &mut self.tools,
            List::Prompts => &mut self.prompts,
            List::Resources => &mut self.resources,
        }
    }

    fn has(mut self, list: List) -> bool {
        *self.slot(list)
    }
}

/// What has changed since somebody last looked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The lists.
    pub lists: Lists,
    /// The resources, with their servers.
    pub resources: BTreeSet<(ServerId, String)>,
}

/// One listener's news.
#[derive(Debug, Default)]
pub struct Mailbox {
    news: Mutex<News>,
    arrived: Notify,
}

impl Mailbox {
    /// Waits until there is news, and takes it.
    pub async fn next(&self) -> News {
        loop {
            let arrived = self.arrived.notified();
            let news = std::mem::take(&mut *self.news.lock());
            if news != News::default() {
                return news;
            }
            arrived.await;
        }
    }

    fn put(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock());
        self.arrived.notify_one();
    }
}

/// All listeners of one server, over all its runs.
#[derive(Debug)]
pub struct Changes {
    server: ServerId,
    table: Mutex<Table>,
    /// Told when the watched resources are others, or the server has said yes or no to one.
    moved: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    listeners: HashMap<u64, Entry>,
    next: u64,
    watched: HashMap<String, Watched>,
}

#[derive(Debug)]
struct Entry {
    mailbox: Arc<Mailbox>,
    lists: Lists,
    resources: BTreeSet<String>,
}

#[derive(Debug)]
struct Watched {
    watchers: usize,
    /// What the server said; `None` as long as it has not.
    answer: Option<Result<(), Arc<ErrorObject>>>,
}

/// Why a resource cannot be watched.
#[derive(Debug)]
pub enum WatchError {
    /// Too many are watched already.
    TooMany,
    /// The server refused.
    Refused(Arc<ErrorObject>),
    /// The server has not answered in time.
    Expired,
}

impl Changes {
    /// Of a server that nobody listens to yet.
    pub fn new(server: ServerId) -> Arc<Self> {
        Arc::new(Self { server, table: Mutex::default(), moved: watch::Sender::new(0) })
    }

    /// Sends news of `lists` to `mailbox` until the subscription is dropped.
    pub fn subscribe(self: &Arc<Self>, mailbox: Arc<Mailbox>, lists: Lists) -> Subscription {
        let mut table = self.table.lock();
        let key = table.next;
        table.next += 1;
        table.listeners.insert(key, Entry { mailbox, lists, resources: BTreeSet::new() });
        Subscription { changes: self.clone(), key }
    }

    /// A list is another now.
    pub(super) fn list_changed(&self, list: List) {
        let table = self.table.lock();
        for entry in table.listeners.values().filter(|entry| entry.lists.has(list)) {
            entry.mailbox.put(|news| *news.lists.slot(list) = true);
        }
    }

    /// A resource is another now.
    pub(super) fn resource_updated(&self, uri: &str) {
        let table = self.table.lock();
        for entry in table.listeners.values().filter(|entry| entry.resources.contains(uri)) {
            entry.mailbox.put(|news| {
                news.resources.insert((self.server.clone(), uri.to_owned()));
            });
        }
    }

    /// The server was started again: nobody knows what has changed meanwhile.
    pub(super) fn anything_may_have_changed(&self) {
        let table = self.table.lock();
        for entry in table.listeners.values() {
            let lists = entry.lists;
            let resources = entry.resources.iter().map(|uri| (self.server.clone(), uri.clone()));
            entry.mailbox.put(|news| {
                news.lists.tools |= lists.tools;
                news.lists.prompts |= lists.prompts;
                news.lists.resources |= lists.resources;
                news.resources.extend(resources);
            });
        }
    }

    /// The resources that are watched now.
    pub(super) fn watched(&self) -> BTreeSet<String> {
        self.table.lock().watched.keys().cloned().collect()
    }

    /// Those of them to which the server has not said anything yet.
    pub(super) fn unsettled(&self) -> Vec<String> {
        let table = self.table.lock();
        let unsettled = table.watched.iter().filter(|(_, watched)| watched.answer.is_none());
        unsettled.map(|(uri, _)| uri.clone()).collect()
    }

    /// Told when [`Changes::watched`] has become another.
    pub(super) fn moved(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// What the server said to a subscription. Refused ones are tried again when somebody asks again.
    pub(super) fn settle(&self, uri: &str, answer: Result<(), ErrorObject>) {
        if let Some(watched) = self.table.lock().watched.get_mut(uri) {
            watched.answer = Some(answer.map_err(Arc::new));
        }
        self.moved.send_modify(|version| *version += 1);
    }

    /// A new run of the server knows of no subscription.
    pub(super) fn unsettle(&self) {
        for watched in self.table.lock().watched.values_mut() {
            watched.answer = None;
        }
    }
}

/// One listener's place. Dropping it ends everything that it asked for.
#[derive(Debug)]
pub struct Subscription {
    changes: Arc<Changes>,
    key: u64,
}

impl Subscription {
    /// Also sends news of a resource; done when the server has agreed.
    pub async fn watch(&self, uri: &str, deadline: Instant) -> Result<(), WatchError> {
        let mut moved = self.changes.moved.subscribe();
        self.add(uri)?;
        loop {
            moved.borrow_and_update();
            let answer =
                self.changes.table.lock().watched.get(uri).map(|watched| watched.answer.clone());
            match answer.flatten() {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => {
                    self.unwatch(uri);
                    return Err(WatchError::Refused(error));
                }
                None => {}
            }
            if !matches!(timeout_at(deadline, moved.changed()).await, Ok(Ok(()))) {
                self.unwatch(uri);
                return Err(WatchError::Expired);
            }
        }
    }

    /// The same without waiting for the server's word.
    pub fn watch_all(&self, uris: impl IntoIterator<Item = String>) -> Result<(), WatchError> {
        uris.into_iter().try_for_each(|uri| self.add(&uri))
    }

    /// No more news of a resource.
    pub fn unwatch(&self, uri: &str) {
        {
            let mut table = self.changes.table.lock();
            let Some(entry) = table.listeners.get_mut(&self.key) else { return };
            if !entry.resources.remove(uri) {
                return;
            }
            table.release(uri);
        }
        self.changes.moved.send_modify(|version| *version += 1);
    }

    /// How many resources it watches.
    pub fn watched_len(&self) -> usize {
        let table = self.changes.table.lock();
        table.listeners.get(&self.key).map_or(0, |entry| entry.resources.len())
    }

    fn add(&self, uri: &str) -> Result<(), WatchError> {
        {
            let mut table = self.changes.table.lock();
            if !table.watched.contains_key(uri) && table.watched.len() == WATCHED_MAX {
                return Err(WatchError::TooMany);
            }
            let entry = table.listeners.get_mut(&self.key).expect("it is there until dropped");
            if !entry.resources.insert(uri.to_owned()) {
                return Ok(());
            }
            let watched = table.watched.entry(uri.to_owned());
            watched.or_insert(Watched { watchers: 0, answer: None }).watchers += 1;
        }
        self.changes.moved.send_modify(|version| *version += 1);
        Ok(())
    }
}

impl Table {
    fn release(&mut self, uri: &str) {
        if let Some(watched) = self.watched.get_mut(uri) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                self.watched.remove(uri);
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        {
            let mut table = self.changes.table.lock();
            let Some(entry) = table.listeners.remove(&self.key) else { return };
            for uri in &entry.resources {
                table.release(uri);
            }
        }
        self.changes.moved.send_modify(|version| *version += 1);
    }
}
