//! Counts a tenant's usage in memory. [`super::usage_writer`] writes it to the store.

use std::collections::HashMap;
use std::mem::take;

use parking_lot::Mutex;

use crate::common::ids::ServerId;
use crate::store::Counts;

/// Usage since it was last taken. The lock is held for a few additions, and shared by calls of this
/// tenant only.
#[derive(Debug, Default)]
pub struct Meter {
    used: Mutex<Used>,
}

/// By server, and by tool or MCP method.
pub type Used = HashMap<ServerId, HashMap<String, Counts>>;

impl Meter {
    pub fn add(&self, server: &ServerId, tool: &str, counts: Counts) {
        let mut used = self.used.lock();
        if let Some(sum) = used.get_mut(server).and_then(|tools| tools.get_mut(tool)) {
            *sum += counts;
        } else {
            used.entry(server.clone()).or_default().insert(tool.to_owned(), counts);
        }
    }

    /// Returns the usage since the last time.
    pub fn take(&self) -> Used {
        take(&mut self.used.lock())
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
        assert_eq!(used[&server]["echo"], Counts { calls: 2, bytes_in: 20, ..Counts::default() });
        assert_eq!(used[&server]["sleep"], once);
        assert!(meter.take().is_empty());
    }
}
