//! Who wants to know what changes at a server: its lists, and single resources.
//!
//! Whoever listens has a [`Mailbox`].
//!
//! Resources are counted: the first who watches one makes the gateway subscribe at the server, the last who leaves
//! makes it unsubscribe. The server's supervisor does that, and does it again after each restart.

pub mod audience;
pub mod mailbox;
pub(crate) mod subscriptions;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use self::mailbox::{List, Lists, Mailbox};
use crate::common::ids::{ServerId, TenantId};
use crate::protocol::jsonrpc::envelope::ErrorObject;

/// Resources that may be watched at one server, by all tenants together and by one of them.
const WATCHED_MAX: usize = 10_000;
const WATCHED_BY_TENANT_MAX: usize = 1_000;
/// The longest name of a resource that can be watched: all of them are kept, and told to the server together.
const URI_LEN_MAX: usize = 2048;

/// All listeners of one server, over all its runs.
#[derive(Debug)]
pub struct Changes {
    server: ServerId,
    table: Mutex<Table>,
    /// Told when the watched resources are others.
    moved: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    listeners: HashMap<u64, Entry>,
    next: u64,
    watched: HashMap<String, Watched>,
    /// How many resources each tenant watches.
    of_tenant: HashMap<TenantId, usize>,
}

#[derive(Debug)]
struct Entry {
    tenant: TenantId,
    mailbox: Arc<Mailbox>,
    lists: Lists,
    resources: BTreeSet<String>,
}

#[derive(Debug)]
struct Watched {
    /// Keys of those who watch it.
    watchers: HashSet<u64>,
    /// What the server said; `None` as long as it has not.
    answer: watch::Sender<Option<Answer>>,
}

/// What a server said to a subscription.
type Answer = Result<(), Arc<ErrorObject>>;

/// Why a resource cannot be watched.
#[derive(Debug)]
pub enum WatchError {
    /// The tenant watches too many already.
    TooMany,
    /// All tenants together do.
    Full,
    /// Its name is too long.
    TooLong,
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
    pub fn subscribe(
        self: &Arc<Self>,
        tenant: TenantId,
        mailbox: Arc<Mailbox>,
        lists: Lists,
    ) -> Subscription {
        let mut table = self.table.lock();
        let key = table.next;
        table.next += 1;
        table.listeners.insert(key, Entry { tenant, mailbox, lists, resources: BTreeSet::new() });
        Subscription { changes: self.clone(), key }
    }

    /// Whether anybody listens.
    pub fn is_heard(&self) -> bool {
        !self.table.lock().listeners.is_empty()
    }

    /// The server they are about.
    pub fn server(&self) -> &ServerId {
        &self.server
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
        let watchers = table.watched.get(uri).into_iter().flat_map(|watched| &watched.watchers);
        for entry in watchers.filter_map(|key| table.listeners.get(key)) {
            entry.mailbox.put(|news| {
                news.resources.insert((self.server.clone(), uri.to_owned()));
            });
        }
    }

    /// Nobody has listened to these lists for a while: they may be others now.
    pub(super) fn lists_may_have_changed(&self, lists: Lists) {
        for list in [List::Tools, List::Prompts, List::Resources] {
            if lists.has(list) {
                self.list_changed(list);
            }
        }
    }

    /// Nobody has listened to the resources for a while.
    pub(super) fn resources_may_have_changed(&self) {
        let table = self.table.lock();
        for entry in table.listeners.values() {
            let resources = entry.resources.iter().map(|uri| (self.server.clone(), uri.clone()));
            entry.mailbox.put(|news| news.resources.extend(resources));
        }
    }

    /// Another server has the name now, or none.
    pub fn all_may_have_changed(&self) {
        self.lists_may_have_changed(Lists::ALL);
        self.resources_may_have_changed();
    }

    /// The resources that are watched now, but for those that the server has refused.
    pub(super) fn watched(&self) -> BTreeSet<String> {
        let table = self.table.lock();
        let is_refused = |it: &Watched| matches!(&*it.answer.borrow(), Some(Err(_)));
        let watched = table.watched.iter().filter(|(_, watched)| !is_refused(watched));
        watched.map(|(uri, _)| uri.clone()).collect()
    }

    /// Those of them to which the server has not said anything yet, by the tenants that wait for it.
    pub(super) fn unsettled(&self) -> BTreeMap<TenantId, BTreeSet<String>> {
        let table = self.table.lock();
        let is_unsettled = |uri: &&String| {
            table.watched.get(*uri).is_some_and(|watched| watched.answer.borrow().is_none())
        };
        let mut unsettled: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for entry in table.listeners.values() {
            for uri in entry.resources.iter().filter(is_unsettled) {
                unsettled.entry(entry.tenant.clone()).or_default().insert(uri.clone());
            }
        }
        unsettled
    }

    /// Told when [`Changes::watched`] has become another.
    pub(super) fn moved(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// What the server said to a subscription. A refused one is tried again when somebody else asks for it.
    pub(super) fn settle(&self, uri: &str, answer: Result<(), ErrorObject>) {
        if let Some(watched) = self.table.lock().watched.get(uri) {
            watched.answer.send_replace(Some(answer.map_err(Arc::new)));
        }
    }

    /// A new run of the server knows of no subscription.
    pub(super) fn unsettle(&self) {
        for watched in self.table.lock().watched.values() {
            watched.answer.send_replace(None);
        }
    }

    /// What could not be asked for is to be asked for again, for those who still watch it. Gives what that is.
    pub(super) fn unsettle_failed<'a>(&self, uris: &'a BTreeSet<String>) -> Vec<&'a String> {
        let table = self.table.lock();
        let unsettle = |watched: &Watched| {
            watched.answer.send_if_modified(|answer| {
                let has_failed = matches!(answer, Some(Err(_)));
                *answer = answer.take().filter(|_| !has_failed);
                has_failed
            })
        };
        uris.iter().filter(|uri| table.watched.get(*uri).is_some_and(unsettle)).collect()
    }

    fn note_move(&self) {
        self.moved.send_modify(|version| *version += 1);
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
        let (is_new, mut answer) = self.add(uri)?;
        // What was watched before is still watched, whatever comes of this; what was not is given up with the wait.
        let mut giving_up = GiveUp { subscription: self, uri: is_new.then_some(uri) };
        let answered = answer.wait_for(Option::is_some);
        let answer = match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        match answer {
            Some(Ok(())) => {
                giving_up.uri = None;
                Ok(())
            }
            Some(Err(error)) => Err(WatchError::Refused(error)),
            None => Err(WatchError::Expired),
        }
    }

    /// The same without waiting for the server's word.
    pub fn watch_all(&self, uris: impl IntoIterator<Item = String>) -> Result<(), WatchError> {
        uris.into_iter().try_for_each(|uri| self.add(&uri).map(drop))
    }

    /// Waits until the server has said yes or no to all that is watched here, but not beyond `deadline`. What it
    /// refused is no longer watched, and given back.
    pub async fn settled(&self, deadline: Instant) -> Vec<String> {
        let mut refused = vec![];
        for (uri, mut answer) in self.answers() {
            let answered = timeout_at(deadline, answer.wait_for(Option::is_some)).await;
            if let Ok(Ok(answer)) = answered
                && matches!(&*answer, Some(Err(_)))
            {
                refused.push(uri);
            }
        }
        refused.iter().for_each(|uri| self.unwatch(uri));
        refused
    }

    /// Where the server's word is told, for all that is watched here.
    fn answers(&self) -> Vec<(String, watch::Receiver<Option<Answer>>)> {
        let table = self.changes.table.lock();
        let resources = table.listeners.get(&self.key).into_iter().flat_map(|it| &it.resources);
        let answer = |uri: &String| Some((uri.clone(), table.watched.get(uri)?.answer.subscribe()));
        resources.filter_map(answer).collect()
    }

    /// No more news of a resource.
    pub fn unwatch(&self, uri: &str) {
        {
            let mut table = self.changes.table.lock();
            let Some(entry) = table.listeners.get_mut(&self.key) else { return };
            if !entry.resources.remove(uri) {
                return;
            }
            // What was not told yet is not wanted any more.
            let news = (self.changes.server.clone(), uri.to_owned());
            entry.mailbox.take_back(&news);
            let tenant = entry.tenant.clone();
            table.release(self.key, &tenant, uri);
        }
        self.changes.note_move();
    }

    /// Whether it is about these changes: a name may have others later.
    pub fn is_of(&self, changes: &Arc<Changes>) -> bool {
        Arc::ptr_eq(&self.changes, changes)
    }

    /// How many resources it watches.
    pub fn watched_len(&self) -> usize {
        let table = self.changes.table.lock();
        table.listeners.get(&self.key).map_or(0, |entry| entry.resources.len())
    }

    /// Tells whether it was not watched here before, and where the server's word is told.
    fn add(&self, uri: &str) -> Result<(bool, watch::Receiver<Option<Answer>>), WatchError> {
        if uri.len() > URI_LEN_MAX {
            return Err(WatchError::TooLong);
        }
        let (is_new, answer) = {
            let mut table = self.changes.table.lock();
            let table = &mut *table;
            let entry = table.listeners.get_mut(&self.key).expect("it is there until dropped");
            let is_new = !entry.resources.contains(uri);
            let of_tenant = table.of_tenant.get(&entry.tenant).copied().unwrap_or_default();
            let is_full = !table.watched.contains_key(uri) && table.watched.len() >= WATCHED_MAX;
            if is_new && of_tenant >= WATCHED_BY_TENANT_MAX {
                return Err(WatchError::TooMany);
            }
            if is_new && is_full {
                return Err(WatchError::Full);
            }
            let watched = table.watched.entry(uri.to_owned()).or_insert_with(Watched::new);
            if is_new {
                table.of_tenant.insert(entry.tenant.clone(), of_tenant + 1);
                entry.resources.insert(uri.to_owned());
                watched.watchers.insert(self.key);
            }
            // Somebody asks again: the server may say something else now.
            if matches!(&*watched.answer.borrow(), Some(Err(_))) {
                watched.answer.send_replace(None);
            }
            (is_new, watched.answer.subscribe())
        };
        self.changes.note_move();
        Ok((is_new, answer))
    }
}

/// Ends a watch that was not agreed to, when its wait is over or given up.
struct GiveUp<'a> {
    subscription: &'a Subscription,
    uri: Option<&'a str>,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.subscription.unwatch(uri);
        }
    }
}

impl Watched {
    fn new() -> Self {
        Self { watchers: HashSet::new(), answer: watch::Sender::new(None) }
    }
}

impl Table {
    fn release(&mut self, key: u64, tenant: &TenantId, uri: &str) {
        if let Some(watched) = self.watched.get_mut(uri) {
            watched.watchers.remove(&key);
            if watched.watchers.is_empty() {
                self.watched.remove(uri);
            }
        }
        if let Some(of_tenant) = self.of_tenant.get_mut(tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                self.of_tenant.remove(tenant);
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
                table.release(self.key, &entry.tenant, uri);
            }
            if entry.resources.is_empty() {
                return;
            }
            // What it would have told of them is not wanted either.
            entry.mailbox.forget(&self.changes.server);
        }
        self.changes.note_move();
    }
}

#[cfg(test)]
#[path = "tests/changes.rs"]
mod tests;
