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
pub(super) struct Queue {
    by_rank: BTreeMap<Rank, Arc<Connection>>,
    /// The sizes of all of them.
    bytes: usize,
}

/// The time of the last use when it was last looked at, and a number of the connection.
pub(super) type Rank = (u64, u64);

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.by_rank.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, connection: Arc<Connection>) {
        self.bytes += connection.size();
        self.insert_at(connection.activity.last(), connection);
    }

    pub(super) fn remove(&mut self, connection: &Connection) -> Option<Arc<Connection>> {
        let removed = self.by_rank.remove(&connection.rank())?;
        self.bytes -= removed.size();
        Some(removed)
    }

    /// Changes the size of a connection of this queue.
    pub(super) fn resize(&mut self, connection: &Connection, size: usize) {
        self.bytes = self.bytes - connection.size() + size;
        connection.set_size(size);
    }

    /// Returns the connection that was left idle for longest. One with an open request comes after
    /// all others; it is returned if the search finds nothing else.
    pub(super) fn longest_idle(&mut self, now: u64) -> Option<Arc<Connection>> {
        for _ in 0..LOOKS_MAX {
            let (&(time, _), connection) = self.by_rank.first_key_value()?;
            let activity = &connection.activity;
            let last = if activity.is_busy() { now + 1 } else { activity.last() };
            if last <= time {
                break;
            }
            let (_, connection) = self.by_rank.pop_first()?;
            self.insert_at(last, connection);
        }
        self.by_rank.values().next().cloned()
    }

    fn insert_at(&mut self, time: u64, connection: Arc<Connection>) {
        connection.set_rank(time);
        self.by_rank.insert(connection.rank(), connection);
    }
}
