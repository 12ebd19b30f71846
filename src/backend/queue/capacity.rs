//! How many may wait, and who gives way when there are too many.
//!
//! The bounds are for all tenants together. Whoever has most gives way to those who have less, so that a quiet
//! tenant is never refused because another fills the line.

use super::round_robin::{Line, Waiting};

/// Calls that may wait for one server. Beyond this, waiting only makes the answers later.
pub const WAITING_MAX: usize = 4096;
/// Bytes of arguments that may wait for one server.
pub const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How many calls were sent away that wanted a slot.
pub(super) type SentAway = usize;

impl<W> Line<W> {
    /// Makes room for one more call of a tenant, with so many bytes. The newest calls of those who have most are
    /// dropped for it; if that does not help, none is, and there is no room.
    pub(super) fn make_room(&mut self, number: u32, bytes: usize) -> Option<SentAway> {
        let (calls_then, bytes_then) = match self.tenants.get(&number) {
            Some(waiting) => (waiting.len() + 1, waiting.bytes + bytes),
            None => (1, bytes),
        };
        let is_over = |line: &Self| line.bytes + bytes > WAITING_BYTES_MAX;
        if is_over(self) {
            let missing = self.bytes + bytes - WAITING_BYTES_MAX;
            let surplus = self.tenants.values().map(|it| it.bytes.saturating_sub(bytes_then));
            if surplus.sum::<usize>() < missing {
                return None;
            }
        } else if self.calls >= WAITING_MAX {
            let most = self.tenants.values().map(Waiting::len).max().unwrap_or(0);
            if most <= calls_then {
                return None;
            }
        }
        let mut sent_away = 0;
        while is_over(self) {
            sent_away += self.send_one_away(|it| it.bytes);
        }
        if self.calls >= WAITING_MAX {
            sent_away += self.send_one_away(Waiting::len);
        }
        Some(sent_away)
    }

    /// Drops the newest call of the tenant that has most.
    fn send_one_away(&mut self, measure: impl Fn(&Waiting<W>) -> usize) -> SentAway {
        let most = self.tenants.iter_mut().max_by_key(|(number, it)| (measure(it), **number));
        let Some((&number, waiting)) = most else { return 0 };
        let newest = |calls: &std::collections::VecDeque<super::round_robin::Waiter<W>>| {
            calls.back().map(|waiter| waiter.key)
        };
        let wanted_slot = newest(&waiting.calls) > newest(&waiting.early);
        let calls = if wanted_slot { &mut waiting.calls } else { &mut waiting.early };
        if let Some(waiter) = calls.pop_back() {
            self.gone(number, waiter.bytes);
        }
        usize::from(wanted_slot)
    }
}
