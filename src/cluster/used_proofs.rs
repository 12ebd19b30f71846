//! Remembers accepted proofs as long as they are valid, so that none is accepted twice.

use std::collections::HashSet;
use std::mem;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// More than come in one span. Proofs beyond it are refused.
const PROOFS_MAX: usize = 1 << 20;

/// Proofs of the last full span and of the current one.
pub(super) struct UsedProofs {
    span: Duration,
    spans: Mutex<Spans>,
}

struct Spans {
    began: Instant,
    now: HashSet<u64>,
    before: HashSet<u64>,
}

impl UsedProofs {
    /// Each proof is remembered for at least `span`, and at most twice that.
    pub(super) fn new(span: Duration) -> Self {
        let spans = Spans { began: Instant::now(), now: HashSet::new(), before: HashSet::new() };
        Self { span, spans: Mutex::new(spans) }
    }

    /// Remembers a proof by its random number. Returns whether it is new and fits.
    pub(super) fn insert(&self, number: u64) -> bool {
        let mut spans = self.spans.lock();
        if spans.began.elapsed() >= self.span {
            spans.began = Instant::now();
            spans.before = mem::take(&mut spans.now);
        }
        !spans.before.contains(&number) && spans.now.len() < PROOFS_MAX && spans.now.insert(number)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SPAN: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_number_is_taken_once_for_a_span_at_least_and_not_remembered_for_ever() {
        let used = UsedProofs::new(SPAN);
        for (number, later) in (0..).zip([0, 1, 30, 59]) {
            // At different times within a span.
            advance(SPAN).await;
            assert!(used.insert(10 + number));
            advance(Duration::from_secs(later)).await;
            assert!(used.insert(number));
            advance(SPAN - Duration::from_millis(1)).await;
            assert!(!used.insert(number), "{later} s later");
        }
        advance(SPAN).await;
        assert!(used.insert(100));
        advance(SPAN).await;
        assert!(used.insert(101));
        let spans = used.spans.lock();
        assert_eq!((spans.now.len(), spans.before.len()), (1, 1));
    }

    #[tokio::test]
    async fn when_full_no_proof_is_accepted() {
        let used = UsedProofs::new(SPAN);
        used.spans.lock().now.extend(0..PROOFS_MAX as u64);
        assert!(!used.insert(u64::MAX));
    }
}
