//! Orders connections by their last use, without work while they are used.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Connection;

/// The connections that one search looks at: the cost of a search has a bound, also if all have
/// been used since they were ordered.
const LOOKS_MAX: usize = 64;

/// Connections by the time of their last use as far as known, the longest ago first. A search
/// corrects the times that it meets.
#[derive(Debug, Default)]
pub(super) struct Queue(BTreeMap<Rank, Arc<Connection>>);

/// The time of the last use when it was last looked at, and a number of the connection.
pub(super) type Rank = (u64, u64);

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, connection: Arc<Connection>) {
        self.insert_at(connection.activity.last(), connection);
    }

    pub(super) fn remove(&mut self, connection: &Connection) -> Option<Arc<Connection>> {
        self.0.remove(&connection.rank())
    }

    /// Returns the connection that was left idle for longest. One with an open request comes after
    /// all others; it is returned if the search finds nothing else.
    pub(super) fn longest_idle(&mut self, now: u64) -> Option<Arc<Connection>> {
        for _ in 0..LOOKS_MAX {
            let (&(time, _), connection) = self.0.first_key_value()?;
            let activity = &connection.activity;
            let last = if activity.is_busy() { now + 1 } else { activity.last() };
            if last <= time {
                break;
            }
            let (_, connection) = self.0.pop_first()?;
            self.insert_at(last, connection);
        }
        self.0.values().next().cloned()
    }

    fn insert_at(&mut self, time: u64, connection: Arc<Connection>) {
        connection.set_rank(time);
        self.0.insert(connection.rank(), connection);
    }
}
