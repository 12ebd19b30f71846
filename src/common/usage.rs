//! Counts a tenant's usage in memory. `tenants::usage_writer` writes it to the store.

use std::collections::HashMap;
use std::mem::take;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::ids::ServerId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All calls, however they ended.
    pub calls: u64,
    pub errors: u64,
    /// Calls whose tool reported an error.
    pub tool_errors: u64,
    /// Time in the queue.
    pub queue_us: u64,
    /// Time at the server.
    pub backend_us: u64,
    /// Bytes of arguments.
    pub bytes_in: u64,
    /// Bytes of results.
    pub bytes_out: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.tool_errors += other.tool_errors;
        self.queue_us += other.queue_us;
        self.backend_us += other.backend_us;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

/// Usage since it was last taken, and in all. The lock is held for a few additions, and shared by
/// calls of this tenant only.
#[derive(Debug, Default)]
pub struct Meter {
    readings: Mutex<Readings>,
    /// Calls that the tenant's own limits refused.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Readings {
    since_taken: Used,
    in_all: Counts,
}

/// By server, and by tool or MCP method.
pub type Used = HashMap<ServerId, HashMap<String, Counts>>;

impl Meter {
    pub fn add(&self, server: &ServerId, tool: &str, counts: Counts) {
        let mut readings = self.readings.lock();
        readings.in_all += counts;
        let used = &mut readings.since_taken;
        if let Some(sum) = used.get_mut(server).and_then(|tools| tools.get_mut(tool)) {
            *sum += counts;
        } else {
            used.entry(server.clone()).or_default().insert(tool.to_owned(), counts);
        }
    }

    /// Returns the usage since the last time.
    pub fn take(&self) -> Used {
        take(&mut self.readings.lock().since_taken)
    }

    /// Returns the usage since the tenant was added or the gateway started.
    pub fn in_all(&self) -> Counts {
        self.readings.lock().in_all
    }

    /// Counts a call that the tenant's own limits refused.
    pub fn add_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_usage_is_counted_once() {
        let meter = Meter::default();
        let server = ServerId::parse("std").unwrap();
        let once = Counts { calls: 1, bytes_in: 10, ..Counts::default() };
        meter.add(&server, "echo", once);
        meter.add(&server, "echo", once);
        meter.add(&server, "sleep", once);
        let used = meter.take();
        assert_eq!(meter.in_all().calls, 3);
        assert_eq!(used[&server]["echo"], Counts { calls: 2, bytes_in: 20, ..Counts::default() });
        assert_eq!(used[&server]["sleep"], once);
        assert!(meter.take().is_empty());
    }
}
