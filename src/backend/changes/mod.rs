//! Tells listeners what changes at a server: its lists, and single resources.
//!
//! Each listener has a [`Mailbox`] and holds a [`Subscription`].
//!
//! Resources are counted. The first listener that watches a resource makes the gateway subscribe at
//! the server, the last one that leaves makes it unsubscribe. The supervisor does that
//! ([`subscriptions`]), again after each restart.

pub mod mailbox;
pub mod recipients;
mod subscription;
pub(crate) mod subscriptions;
pub(crate) mod update;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use self::mailbox::{List, Lists, Mailbox, Notice};
pub use self::subscription::Subscription;
use self::update::Update;
use crate::common::ids::{ServerId, TenantId};
use crate::protocol::jsonrpc::envelope::ErrorObject;

/// Resources that may be watched at one server, by all tenants together and by one of them.
const WATCHED_MAX: usize = 10_000;
pub const WATCHED_BY_TENANT_MAX: usize = 1_000;
/// The longest URI that can be watched. All URIs are kept, and one request may name all of them.
const URI_LEN_MAX: usize = 2048;

/// All listeners of one server, over all its instances and restarts.
#[derive(Debug)]
pub struct Changes {
    server: ServerId,
    table: Mutex<SubscriberTable>,
    /// Counts the changes of the set of watched resources.
    watched_changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct SubscriberTable {
    listeners: HashMap<u64, ChangeListener>,
    next_key: u64,
    watched: HashMap<String, Watched>,
    watched_by_tenant: HashMap<TenantId, usize>,
    touched: Touched,
}

/// Resources that somebody has begun or ceased to watch, or that have lost their answer, since the
/// subscription leader last looked.
#[derive(Debug)]
enum Touched {
    These(HashSet<String>),
    /// More than are worth remembering.
    Any,
}

/// The changes since the last look.
#[derive(Debug)]
pub(super) struct WatchChanges {
    /// Watched resources without an answer, by the tenants that wait.
    pub(super) unanswered: BTreeMap<TenantId, BTreeSet<String>>,
    /// Resources that nobody watches any more. With `None` any may be one, and `unanswered` is
    /// complete.
    pub(super) unwatched: Option<Vec<String>>,
}

impl Default for Touched {
    fn default() -> Self {
        Self::These(HashSet::new())
    }
}

impl Touched {
    fn add(&mut self, uri: &str) {
        if let Self::These(uris) = self {
            if uris.len() < WATCHED_MAX {
                uris.insert(uri.to_owned());
            } else {
                *self = Self::Any;
            }
        }
    }
}

#[derive(Debug)]
struct ChangeListener {
    tenant: TenantId,
    mailbox: Arc<Mailbox>,
    lists: Lists,
    resources: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Keys of the listeners that watch the resource.
    watchers: HashSet<u64>,
    /// The server's answer to the subscription; `None` until there is one.
    answer: watch::Sender<Option<Answer>>,
}

type Answer = Result<(), Arc<ErrorObject>>;

/// Says why a resource cannot be watched.
#[derive(Debug)]
pub enum WatchError {
    /// The tenant watches [`WATCHED_BY_TENANT_MAX`] resources already.
    TooMany,
    /// All tenants together watch [`WATCHED_MAX`] resources already.
    Full,
    TooLong,
    /// The server refused the subscription.
    Refused(Arc<ErrorObject>),
    /// The server did not answer in time.
    Expired,
}

impl Changes {
    pub fn new(server: ServerId) -> Arc<Self> {
        Arc::new(Self { server, table: Mutex::default(), watched_changed: watch::Sender::new(0) })
    }

    /// Puts changes of `lists` into `mailbox` until the subscription is dropped.
    pub fn subscribe(
        self: &Arc<Self>,
        tenant: TenantId,
        mailbox: Arc<Mailbox>,
        lists: Lists,
    ) -> Subscription {
        let listener = ChangeListener { tenant, mailbox, lists, resources: BTreeSet::new() };
        let mut table = self.table.lock();
        let key = table.next_key;
        table.next_key += 1;
        table.listeners.insert(key, listener);
        Subscription { changes: self.clone(), key }
    }

    pub fn has_listeners(&self) -> bool {
        !self.table.lock().listeners.is_empty()
    }

    pub fn server(&self) -> &ServerId {
        &self.server
    }

    pub(super) fn list_changed(&self, list: List) {
        let table = self.table.lock();
        for listener in table.listeners.values().filter(|listener| listener.lists.has(list)) {
            listener.mailbox.list_changed(list);
        }
    }

    /// Tells listeners of a notification of an extension. Returns how many had no room.
    pub(super) fn notified(&self, notice: &Notice) -> u64 {
        let table = self.table.lock();
        let listeners = table.listeners.values().filter(|listener| listener.lists.extensions);
        listeners.filter(|listener| !listener.mailbox.notified(notice)).count() as u64
    }

    /// Tells those who watch a resource, or one that contains it, of an update.
    pub(super) fn resource_updated(&self, update: &Update<'_>) {
        let table = self.table.lock();
        let mut told = HashSet::new();
        for uri in update.containing() {
            let watchers = table.watched.get(uri).into_iter().flat_map(|watched| &watched.watchers);
            for key in watchers.filter(|key| told.insert(**key)) {
                if let Some(listener) = table.listeners.get(key) {
                    listener.mailbox.resource_updated(&self.server, Some(uri), update);
                }
            }
        }
    }

    /// Tells all listeners of an update: for a server that one client has to itself. Returns
    /// whether there was room.
    pub(super) fn own_resource_updated(&self, update: &Update<'_>) -> bool {
        let table = self.table.lock();
        let mut had_room = true;
        for listener in table.listeners.values() {
            had_room &= listener.mailbox.resource_updated(&self.server, None, update);
        }
        had_room
    }

    /// Reports these lists as changed, because changes may have been missed.
    pub(super) fn lists_may_have_changed(&self, lists: Lists) {
        for list in [List::Tools, List::Prompts, List::Resources] {
            if lists.has(list) {
                self.list_changed(list);
            }
        }
    }

    /// Reports all watched resources as updated, because updates may have been missed.
    pub(super) fn resources_may_have_changed(&self) {
        let table = self.table.lock();
        for listener in table.listeners.values() {
            for uri in &listener.resources {
                listener.mailbox.resource_changed(&self.server, uri);
            }
        }
    }

    /// Reports everything as changed, because the id now names another server, or none.
    pub fn all_may_have_changed(&self) {
        self.lists_may_have_changed(Lists::ALL);
        self.resources_may_have_changed();
    }

    /// Returns the watched resources, except those that the server has refused.
    pub(super) fn watched(&self) -> BTreeSet<String> {
        let table = self.table.lock();
        let is_refused = |watched: &Watched| matches!(&*watched.answer.borrow(), Some(Err(_)));
        let watched = table.watched.iter().filter(|(_, watched)| !is_refused(watched));
        watched.map(|(uri, _)| uri.clone()).collect()
    }

    pub(super) fn is_watched(&self, uri: &str) -> bool {
        self.table.lock().watched.contains_key(uri)
    }

    /// Waits until nobody watches a resource.
    pub(super) async fn unwatched(&self, uri: &str) {
        let answer = self.table.lock().watched.get(uri).map(|it| it.answer.subscribe());
        if let Some(mut answer) = answer {
            while answer.changed().await.is_ok() {}
        }
    }

    /// Returns the watched resources without an answer of the server, by the tenants that wait.
    pub(super) fn unanswered(&self) -> BTreeMap<TenantId, BTreeSet<String>> {
        let table = self.table.lock();
        let is_unanswered = |uri: &&String| {
            table.watched.get(*uri).is_some_and(|watched| watched.answer.borrow().is_none())
        };
        let mut unanswered: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for listener in table.listeners.values() {
            for uri in listener.resources.iter().filter(is_unanswered) {
                unanswered.entry(listener.tenant.clone()).or_default().insert(uri.clone());
            }
        }
        unanswered
    }

    /// Returns a channel that reports when [`Changes::watched`] has changed.
    pub(super) fn watched_changed(&self) -> watch::Receiver<u64> {
        self.watched_changed.subscribe()
    }

    /// Records the server's answer to a subscription. A refused resource is tried again when
    /// another listener watches it.
    pub(super) fn record_answer(&self, uri: &str, answer: Result<(), ErrorObject>) {
        if let Some(watched) = self.table.lock().watched.get(uri) {
            watched.answer.send_replace(Some(answer.map_err(Arc::new)));
        }
    }

    /// Forgets all answers, because a new instance of the server knows of no subscription.
    pub(super) fn reset_answers(&self) {
        let mut table = self.table.lock();
        table.touched = Touched::Any;
        for watched in table.watched.values() {
            watched.answer.send_replace(None);
        }
    }

    /// Forgets the answers for `uris`, so that they are requested again for those who still watch
    /// them. Returns the resources that this applies to.
    pub(super) fn reset_answers_of<'a>(&self, uris: &'a BTreeSet<String>) -> Vec<&'a String> {
        let mut table = self.table.lock();
        let SubscriberTable { watched, touched, .. } = &mut *table;
        let reset = |watched: &Watched| watched.answer.send_if_modified(|it| it.take().is_some());
        let reset = uris.iter().filter(|uri| watched.get(*uri).is_some_and(reset));
        reset.inspect(|uri| touched.add(uri)).collect()
    }

    /// Returns what has changed since the last call, however many resources are watched.
    pub(super) fn take_watch_changes(&self) -> WatchChanges {
        let mut table = self.table.lock();
        let Touched::These(touched) = mem::take(&mut table.touched) else {
            drop(table);
            return WatchChanges { unanswered: self.unanswered(), unwatched: None };
        };
        let (mut unanswered, mut unwatched) = (BTreeMap::<_, BTreeSet<_>>::new(), vec![]);
        for uri in touched {
            let Some(watched) = table.watched.get(&uri) else {
                unwatched.push(uri);
                continue;
            };
            if watched.answer.borrow().is_none() {
                let watchers = watched.watchers.iter().filter_map(|key| table.listeners.get(key));
                for listener in watchers {
                    unanswered.entry(listener.tenant.clone()).or_default().insert(uri.clone());
                }
            }
        }
        WatchChanges { unanswered, unwatched: Some(unwatched) }
    }

    fn notify_watched_changed(&self) {
        self.watched_changed.send_modify(|version| *version += 1);
    }
}

impl SubscriberTable {
    /// Removes one listener's watch of a resource.
    fn unwatch(&mut self, key: u64, tenant: &TenantId, uri: &str) {
        if let Some(watched) = self.watched.get_mut(uri) {
            watched.watchers.remove(&key);
            if watched.watchers.is_empty() {
                self.watched.remove(uri);
                self.touched.add(uri);
            }
        }
        if let Some(count) = self.watched_by_tenant.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.watched_by_tenant.remove(tenant);
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/changes.rs"]
mod tests;
