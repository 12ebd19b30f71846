//! The stages of what has one name.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::config::{Program, ServerConfig, Transport};

/// Keeps the seconds that it was given to drain, or `u64::MAX`.
#[derive(Clone)]
struct Fake(Arc<(ServerConfig, AtomicU64)>);

impl Fake {
    fn new(exclusive: bool) -> Self {
        let config = ServerConfig::new(Transport::Stdio(Program::default()));
        Self(Arc::new((ServerConfig { exclusive, ..config }, AtomicU64::new(u64::MAX))))
    }
}

impl Replaceable for Fake {
    fn config(&self) -> &ServerConfig {
        &self.0.0
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn is_draining(&self) -> bool {
        self.0.1.load(Ordering::Relaxed) != u64::MAX
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn drain(&self, within: Duration) {
        assert!(!self.is_draining());
        self.0.1.store(within.as_secs(), Ordering::Relaxed);
    }
}

fn is(it: Option<&Fake>, expected: &Fake) -> bool {
    it.is_some_and(|it| it.is(expected))
}

fn with_active(active: &Fake) -> Rollover<Fake> {
    Rollover { active: Some(active.clone()), ..Rollover::default() }
}

#[test]
fn the_old_one_takes_the_calls_until_the_next_one_is_ready() {
    let (old, next) = (Fake::new(false), Fake::new(false));
    let mut rollover = with_active(&old);
    rollover.next = Some(next.clone());
    assert!(is(rollover.current(), &old) && is(rollover.waiting(), &next));
    assert!(rollover.switch(&next));
    rollover.drain_old(Some(next.config()));
    assert!(is(rollover.current(), &next) && rollover.waiting().is_none());
    assert!(old.is_draining() && !next.is_draining());
    assert!(!rollover.switch(&next), "it is active already");
}

#[test]
fn a_next_one_that_is_not_wanted_any_more_never_becomes_active() {
    let (old, dropped, next) = (Fake::new(false), Fake::new(false), Fake::new(false));
    let mut rollover = with_active(&old);
    rollover.next = Some(dropped.clone());
    rollover.keep_only(Some(&old));
    rollover.next = Some(next.clone());
    rollover.drain_old(None);
    assert!(dropped.is_draining() && !old.is_draining());
    assert!(!rollover.switch(&dropped) && is(rollover.current(), &old));
    // If the next one ends, the old one stays.
    rollover.forget(&next);
    assert!(is(rollover.current(), &old) && rollover.waiting().is_none());
}

#[test]
fn while_the_active_one_drains_the_next_one_is_current() {
    let (old, next) = (Fake::new(false), Fake::new(false));
    let mut rollover = with_active(&old);
    rollover.next = Some(next.clone());
    old.drain(Duration::ZERO);
    assert!(is(rollover.current(), &next) && rollover.waiting().is_none());
    rollover.forget(&old);
    assert!(rollover.switch(&next) && is(rollover.active.as_ref(), &next));
}

#[test]
fn an_exclusive_one_waits_for_all_before_it_and_leaves_calls_their_usual_time() {
    let (old, active, next) = (Fake::new(false), Fake::new(false), Fake::new(true));
    let mut rollover = with_active(&old);
    rollover.keep_only(None);
    rollover.drain_old(Some(active.config()));
    rollover.active = Some(active.clone());
    assert_eq!(rollover.blocking(active.config()).count(), 0);
    rollover.keep_only(None);
    assert_eq!(rollover.blocking(next.config()).count(), 2);
    rollover.drain_old(Some(next.config()));
    let time = |it: &Fake| Duration::from_secs(it.0.1.load(Ordering::Relaxed));
    assert_eq!(time(&old), old.config().longest_call() + CANCEL_GRACE);
    assert_eq!(time(&active), active.config().usual_call() + CANCEL_GRACE);
}
