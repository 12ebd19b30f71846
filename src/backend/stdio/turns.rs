//! The order in which frames are written: by turns of tenants, counted in bytes. Plain data.
//!
//! A server's input is one pipe. Without turns, a tenant's long frames would all be written before
//! the next tenant's short one.

use std::collections::{HashMap, HashSet};

use crate::backend::connection::Outgoing;
use crate::common::ids::TenantId;

/// Bytes of frames that are written with one system call.
pub(super) const BATCH_LEN: usize = 64 * 1024;

/// The frames that wait to be written, oldest first.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) waiting: Vec<Outgoing>,
    /// Bytes that each tenant has written, as long as frames of its own wait. A tenant whose frames
    /// come to wait starts where the one is that has written least.
    written: HashMap<TenantId, usize>,
}

impl Turns {
    /// Moves the frames that are written next to `batch`, at least one if any waits. The rest can
    /// still be cancelled while this batch waits for space in the pipe.
    pub(super) fn take(&mut self, batch: &mut Vec<Outgoing>) {
        let total: usize = self.waiting.iter().map(Outgoing::len).sum();
        if total <= BATCH_LEN && self.written.is_empty() {
            // The usual case: all fit, so their order does not matter.
            batch.append(&mut self.waiting);
            return;
        }
        let level = self.written.values().copied().min().unwrap_or(0);
        for tenant in self.waiting.iter().filter_map(Outgoing::tenant) {
            if !self.written.contains_key(tenant) {
                self.written.insert(tenant.clone(), level);
            }
        }
        let mut len = 0;
        while let Some(next) = self.next() {
            let frame_len = self.waiting[next].len();
            if !batch.is_empty() && len + frame_len > BATCH_LEN {
                break;
            }
            len += frame_len;
            let frame = self.waiting.remove(next);
            if let Some(written) = frame.tenant().and_then(|tenant| self.written.get_mut(tenant)) {
                *written += frame_len;
            }
            batch.push(frame);
        }
        let waiting = &self.waiting;
        let waits = |tenant: &TenantId| waiting.iter().any(|it| it.tenant() == Some(tenant));
        self.written.retain(|tenant, _| waits(tenant));
    }

    /// Returns the oldest frame of the tenant that has written least. Of tenants that have written
    /// as much, the one with the shortest frame is next: it costs the others least. Messages
    /// without a tenant come first: they are short, and a cancel is pointless if it is late.
    fn next(&self) -> Option<usize> {
        let written = |frame: &Outgoing| frame.tenant().map(|tenant| self.written[tenant]);
        let least = self.waiting.iter().map(written).min()?;
        let mut seen = HashSet::new();
        let oldest = self
            .waiting
            .iter()
            .enumerate()
            .filter(|(_, frame)| written(frame) == least && seen.insert(frame.tenant()));
        oldest.min_by_key(|(_, frame)| frame.len()).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::jsonrpc::Frame;

    fn tenant(name: &str) -> TenantId {
        TenantId::testing(name)
    }

    /// A request of about `len` bytes.
    fn request(id: u64, name: &str, len: usize) -> Outgoing {
        let frame = Frame::notification("m", &format!("\"{}\"", "x".repeat(len)));
        Outgoing::Request { id, tenant: tenant(name), frame, headers: vec![], caller: None }
    }

    fn ids(batch: &[Outgoing]) -> Vec<u64> {
        let id = |frame: &Outgoing| match frame {
            Outgoing::Request { id, .. } | Outgoing::Cancel { id, .. } => *id,
            Outgoing::Message { .. } => 0,
        };
        batch.iter().map(id).collect()
    }

    fn take(turns: &mut Turns) -> Vec<u64> {
        let mut batch = vec![];
        turns.take(&mut batch);
        ids(&batch)
    }

    #[test]
    fn frames_that_fit_are_written_together_as_they_came() {
        let mut turns = Turns::default();
        turns.waiting.extend([request(1, "a", 10), request(2, "b", 10), request(3, "a", 10)]);
        assert_eq!(take(&mut turns), [1, 2, 3]);
        assert_eq!(take(&mut turns), [0; 0]);
    }

    #[test]
    fn a_short_frame_is_written_before_another_tenants_long_ones() {
        let mut turns = Turns::default();
        turns.waiting.extend((1..=5).map(|id| request(id, "hostile", BATCH_LEN)));
        assert_eq!(take(&mut turns), [1]);
        turns.waiting.push(request(6, "neighbour", 10));
        // After the one that is being written.
        assert_eq!([take(&mut turns), take(&mut turns)], [[6], [2]]);
        // Nor does it wait for another when it comes again.
        turns.waiting.push(request(7, "neighbour", 10));
        assert_eq!([take(&mut turns), take(&mut turns)], [[7], [3]]);
    }

    #[test]
    fn short_frames_do_not_pass_longer_ones_of_their_own_tenant() {
        let mut turns = Turns::default();
        turns.waiting.extend([
            request(1, "a", BATCH_LEN),
            request(2, "a", 10),
            request(3, "b", BATCH_LEN - 1000),
            request(4, "b", 10),
        ]);
        let order: Vec<u64> = (0..3).flat_map(|_| take(&mut turns)).collect();
        assert_eq!(order, [3, 1, 4, 2]);
    }

    #[test]
    fn tenants_write_equal_bytes_and_a_newcomer_gets_no_advantage() {
        let mut turns = Turns::default();
        turns.waiting.extend((1..=5).map(|id| request(id, "a", BATCH_LEN)));
        assert_eq!([take(&mut turns), take(&mut turns)], [[1], [2]]);
        turns.waiting.extend((11..=14).map(|id| request(id, "b", BATCH_LEN)));
        let order: Vec<u64> = (0..7).flat_map(|_| take(&mut turns)).collect();
        assert_eq!(order, [3, 11, 4, 12, 5, 13, 14]);
        assert!(turns.waiting.is_empty() && turns.written.is_empty());
    }

    #[test]
    fn cancels_come_before_waiting_requests() {
        let mut turns = Turns::default();
        turns.waiting.extend((1..=3).map(|id| request(id, "a", BATCH_LEN)));
        turns.waiting.push(Outgoing::Cancel { id: 9, reason: "late" });
        let mut batch = vec![];
        turns.take(&mut batch);
        assert_eq!(ids(&batch), [9]);
    }
}
