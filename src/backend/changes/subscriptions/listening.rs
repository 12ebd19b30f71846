//! The listen requests at a modern server, and the resources in each. Plain data.
//!
//! The filter of a listen request cannot be changed. So added resources get a request of their own.
//! When there are eight requests of about one length, one new request replaces them. So each
//! resource is sent a few times, however many others are watched: its request is eight times as
//! long each time.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;

use tokio::time::Instant;

use super::listen_request::ListenRequest;
use crate::common::ids::TenantId;

/// So many requests of about one length are replaced by one.
const REPLACED: usize = 8;

pub(super) struct Listening {
    requests: Vec<Part>,
    /// Grows if the server refuses a request that replaces others.
    replaced: usize,
}

/// One request.
pub(super) struct Part {
    pub(super) request: ListenRequest,
    /// The last tenant whose resources were added.
    pub(super) tenant: TenantId,
    pub(super) since: Instant,
    /// The resources that the server agreed to and somebody watches.
    pub(super) uris: BTreeSet<String>,
    /// Resources in the request that nobody watches any more.
    unwatched: usize,
}

impl Part {
    pub(super) fn new(request: ListenRequest, tenant: TenantId, uris: BTreeSet<String>) -> Self {
        Self { request, tenant, since: Instant::now(), uris, unwatched: 0 }
    }

    /// Requests of one class have about one length. [`REPLACED`] of them make one of the next.
    fn class(&self) -> u32 {
        self.uris.len().max(1).ilog(REPLACED)
    }

    fn is_mostly_unwatched(&self) -> bool {
        self.unwatched > 0 && self.unwatched >= self.uris.len()
    }
}

impl Default for Listening {
    fn default() -> Self {
        Self { requests: vec![], replaced: REPLACED }
    }
}

impl Listening {
    pub(super) fn has(&self, uri: &str) -> bool {
        self.requests.iter().any(|part| part.uris.contains(uri))
    }

    /// Adds a request, unless nothing in it is left. Dropping a request cancels it.
    pub(super) fn add(&mut self, part: Part) {
        if !part.uris.is_empty() {
            self.requests.push(part);
        }
    }

    /// Forgets a resource that nobody watches any more.
    pub(super) fn unwatch(&mut self, uri: &str) {
        for part in &mut self.requests {
            part.unwatched += usize::from(part.uris.remove(uri));
        }
        self.requests.retain(|part| !part.uris.is_empty());
    }

    /// Forgets all resources that nobody watches any more.
    pub(super) fn retain(&mut self, is_watched: impl Fn(&str) -> bool) {
        for part in &mut self.requests {
            let before = part.uris.len();
            part.uris.retain(|uri| is_watched(uri));
            part.unwatched += before - part.uris.len();
        }
        self.requests.retain(|part| !part.uris.is_empty());
    }

    /// Takes requests that one new request is to replace: many of about one length, or one of whose
    /// resources most are not watched any more.
    pub(super) fn take_replaceable(&mut self) -> Vec<Part> {
        if let Some(at) = self.requests.iter().position(Part::is_mostly_unwatched) {
            return vec![self.requests.swap_remove(at)];
        }
        let len_of = |class| self.requests.iter().filter(|part| part.class() == class).count();
        let mut classes = self.requests.iter().map(Part::class);
        let Some(full) = classes.find(|class| len_of(*class) >= self.replaced) else {
            return vec![];
        };
        self.requests.extract_if(.., |part| part.class() == full).collect()
    }

    /// Takes requests back that could not be replaced.
    pub(super) fn put_back(&mut self, mut parts: Vec<Part>) {
        if parts.len() > 1 {
            self.replaced *= 2;
        }
        parts.iter_mut().for_each(|part| part.unwatched = 0);
        self.requests.append(&mut parts);
    }

    /// Waits until the server has ended a request, and takes it.
    pub(super) async fn ended(&mut self) -> Part {
        let requests = &mut self.requests;
        let at = poll_fn(|context| {
            let ended =
                requests.iter_mut().position(|it| it.request.poll_ended(context).is_ready());
            ended.map_or(Poll::Pending, Poll::Ready)
        });
        let at = at.await;
        self.requests.swap_remove(at)
    }
}
