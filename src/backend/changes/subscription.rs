//! One listener's subscription.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{Answer, Changes, URI_LEN_MAX, WATCHED_BY_TENANT_MAX, WATCHED_MAX, WatchError};

/// Dropping the subscription ends everything that its listener asked for.
#[derive(Debug)]
pub struct Subscription {
    pub(super) changes: Arc<Changes>,
    pub(super) key: u64,
}

impl Subscription {
    /// Watches a resource and waits until the server has agreed.
    pub async fn watch(&self, uri: &str, deadline: Instant) -> Result<(), WatchError> {
        let (is_new, mut answer) = self.add(uri)?;
        // A new watch is undone unless the server agrees, also when the caller stops waiting. A
        // resource that was watched before stays watched.
        let mut guard = UnwatchGuard { subscription: self, uri: is_new.then_some(uri) };
        let answered = timeout_at(deadline, answer.wait_for(Option::is_some)).await;
        let answer = answered.ok().and_then(Result::ok).and_then(|answer| answer.clone());
        answer.ok_or(WatchError::Expired)?.map_err(WatchError::Refused)?;
        guard.uri = None;
        Ok(())
    }

    /// Watches resources without waiting for the server.
    pub fn watch_all(&self, uris: impl IntoIterator<Item = String>) -> Result<(), WatchError> {
        uris.into_iter().try_for_each(|uri| self.add(&uri).map(drop))
    }

    /// Waits until the server has answered for all resources of this subscription, or until
    /// `deadline`. Stops watching the refused ones and returns them.
    pub async fn await_answers(&self, deadline: Instant) -> Vec<String> {
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

    fn answers(&self) -> Vec<(String, watch::Receiver<Option<Answer>>)> {
        let table = self.changes.table.lock();
        let resources = table.listeners.get(&self.key).into_iter().flat_map(|it| &it.resources);
        let answer = |uri: &String| Some((uri.clone(), table.watched.get(uri)?.answer.subscribe()));
        resources.filter_map(answer).collect()
    }

    pub fn unwatch(&self, uri: &str) {
        {
            let mut table = self.changes.table.lock();
            let Some(listener) = table.listeners.get_mut(&self.key) else { return };
            if !listener.resources.remove(uri) {
                return;
            }
            listener.mailbox.remove_resource(&(self.changes.server.clone(), uri.to_owned()));
            let tenant = listener.tenant.clone();
            table.unwatch(self.key, &tenant, uri);
        }
        self.changes.notify_watched_changed();
    }

    /// Returns whether this is a subscription to `changes`. A later server may have the same id but
    /// other changes.
    pub fn belongs_to(&self, changes: &Arc<Changes>) -> bool {
        Arc::ptr_eq(&self.changes, changes)
    }

    pub fn watched_len(&self) -> usize {
        let table = self.changes.table.lock();
        table.listeners.get(&self.key).map_or(0, |listener| listener.resources.len())
    }

    /// Returns whether the resource is new to this subscription, and the channel for the answer.
    fn add(&self, uri: &str) -> Result<(bool, watch::Receiver<Option<Answer>>), WatchError> {
        if uri.len() > URI_LEN_MAX {
            return Err(WatchError::TooLong);
        }
        let (is_new, answer) = {
            let mut table = self.changes.table.lock();
            let table = &mut *table;
            let listener = table.listeners.get_mut(&self.key).expect("removed only when dropped");
            let is_new = !listener.resources.contains(uri);
            if is_new {
                let by_tenant = table.watched_by_tenant.get(&listener.tenant).copied();
                let by_tenant = by_tenant.unwrap_or_default();
                if by_tenant >= WATCHED_BY_TENANT_MAX {
                    return Err(WatchError::TooMany);
                }
                if !table.watched.contains_key(uri) && table.watched.len() >= WATCHED_MAX {
                    return Err(WatchError::Full);
                }
                table.watched_by_tenant.insert(listener.tenant.clone(), by_tenant + 1);
                listener.resources.insert(uri.to_owned());
            }
            let watched = table.watched.entry(uri.to_owned()).or_default();
            watched.watchers.insert(self.key);
            // A refused resource is tried again, because the server may answer otherwise now.
            watched.answer.send_if_modified(|answer| answer.take_if(|it| it.is_err()).is_some());
            if watched.answer.borrow().is_none() {
                table.touched.add(uri);
            }
            (is_new, watched.answer.subscribe())
        };
        self.changes.notify_watched_changed();
        Ok((is_new, answer))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        {
            let mut table = self.changes.table.lock();
            let Some(listener) = table.listeners.remove(&self.key) else { return };
            for uri in &listener.resources {
                table.unwatch(self.key, &listener.tenant, uri);
            }
            if listener.resources.is_empty() {
                return;
            }
            listener.mailbox.remove_server(&self.changes.server);
        }
        self.changes.notify_watched_changed();
    }
}

/// Stops watching a resource when dropped, if one is set.
struct UnwatchGuard<'a> {
    subscription: &'a Subscription,
    uri: Option<&'a str>,
}

impl Drop for UnwatchGuard<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.subscription.unwatch(uri);
        }
    }
}
