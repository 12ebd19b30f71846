//! Notes the uses of the store that fail now. Operators see them on `/readyz` and in
//! `trunkline_store_up`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{Result, Store, StoreError};

/// The uses that fail, each with its reason.
#[derive(Default)]
pub(super) struct Health(Mutex<BTreeMap<&'static str, String>>);

impl Store {
    /// Returns the uses of the store that fail now, each with its reason.
    pub fn failing(&self) -> BTreeMap<&'static str, String> {
        self.0.health.0.lock().clone()
    }
}

/// Logs the first failure of one use of the store, and the end of failures. Whatever the error: a
/// store that refuses is of no more use than one that is away.
pub struct Outage {
    store: Store,
    what: &'static str,
    meanwhile: &'static str,
}

impl Outage {
    /// `what` is read from the store or written to it; while that fails, `meanwhile` holds.
    pub fn new(store: &Store, what: &'static str, meanwhile: &'static str) -> Self {
        Self { store: store.clone(), what, meanwhile }
    }

    /// Returns the value, if the store gave one.
    pub fn note<T>(&mut self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.succeeded();
                Some(value)
            }
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    fn failed(&self, error: &StoreError) {
        let Self { store, what, meanwhile } = self;
        if store.0.health.0.lock().insert(what, error.to_string()).is_none() {
            tracing::warn!(%error, "the store is away for {what}: {meanwhile}");
        }
    }

    fn succeeded(&self) {
        let what = self.what;
        if self.store.0.health.0.lock().remove(what).is_some() {
            tracing::info!("the store is back for {what}");
        }
    }
}
