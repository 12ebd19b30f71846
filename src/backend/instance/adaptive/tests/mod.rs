//! Servers of all kinds, simulated on a time of its own; and what comes seldom.

mod kinds;
mod simulation;

use std::time::Duration;

use tokio::time::Instant;

use super::*;

const MS: Duration = Duration::from_millis(1);
const FULL: ConcurrencyLimit = ConcurrencyLimit { usual: 8, now: 8 };

/// Calls that each take 10 ms, eight at once, until the limit is lowered. Gives the time then.
fn until_a_probe(adaptive: &Adaptive, tool: impl Fn(usize) -> String) -> Option<Instant> {
    let mut now = Instant::now();
    for round in 0..200 {
        let calls: Vec<_> = (0..8).map(|n| adaptive.begin(&tool(8 * round + n), now)).collect();
        now += 10 * MS;
        for call in calls {
            if let Some(limit) = adaptive.end(call, now, true) {
                assert_eq!(limit, ConcurrencyLimit { usual: 8, now: 1 });
                return Some(now);
            }
        }
    }
    None
}

#[test]
fn a_probe_in_which_all_calls_hang_is_given_up() {
    let adaptive = Adaptive::new(8);
    let now = until_a_probe(&adaptive, |_| "tool".to_owned()).unwrap();
    let hangs = adaptive.begin("tool", now);
    assert_eq!(adaptive.check(now + 500 * MS), None);
    assert_eq!(adaptive.check(now + 1500 * MS), Some(FULL));
    assert_eq!(adaptive.end(hangs, now + 60_000 * MS, false), None);
    assert_eq!(adaptive.state.lock().limit(), FULL);
}

#[test]
fn calls_that_hang_do_not_keep_a_probe_going_by_those_beside_them() {
    let adaptive = Adaptive::new(8);
    let mut now = until_a_probe(&adaptive, |_| "tool".to_owned()).unwrap();
    let _hang = [(); 3].map(|()| adaptive.begin("tool", now));
    for _ in 0..150 {
        let beside = adaptive.begin("tool", now);
        now += 10 * MS;
        adaptive.end(beside, now, true);
    }
    assert_eq!(adaptive.state.lock().limit(), FULL);
}

#[test]
fn a_probe_that_nobody_comes_for_is_given_up() {
    let adaptive = Adaptive::new(8);
    let now = until_a_probe(&adaptive, |_| "tool".to_owned()).unwrap();
    assert_eq!(adaptive.check(now + 2000 * MS), Some(FULL));
}

#[test]
fn tools_beyond_the_bound_are_not_looked_at() {
    let adaptive = Adaptive::new(8);
    for n in 0..2000 {
        let now = Instant::now();
        let call = adaptive.begin(&format!("other{n}"), now);
        adaptive.end(call, now, true);
    }
    assert!(until_a_probe(&adaptive, |n| format!("tool{n}")).is_none());
}

#[test]
fn a_limit_of_two_is_left_alone() {
    let adaptive = Adaptive::new(2);
    let mut now = Instant::now();
    for _ in 0..2000 {
        let calls = [adaptive.begin("tool", now), adaptive.begin("tool", now)];
        now += 10 * MS;
        for call in calls {
            assert_eq!(adaptive.end(call, now, true), None);
        }
    }
}
