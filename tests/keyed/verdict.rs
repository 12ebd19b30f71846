//! Compares the outcomes with the executions.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::callers::{Outcome, State};

/// Faults that are printed in full.
const SHOWN: usize = 10;
/// A call may have begun shortly before its gateway was killed, and been asked for shortly after.
const SLACK: Duration = Duration::from_millis(50);

/// Prints what was seen. Returns the number of faults.
pub fn judge(outcomes: &[Outcome], executions: &HashMap<u64, usize>, kills: &[Instant]) -> usize {
    let mut faults = vec![];
    let (mut answered, mut unknown, mut unknown_but_executed, mut sent) = (0, 0, 0, 0_u64);
    for outcome in outcomes {
        let key = outcome.key;
        let executed = executions.get(&key).copied().unwrap_or(0);
        sent += u64::from(outcome.sent);
        if executed > 1 {
            faults.push(format!("key {key} was executed {executed} times"));
        }
        match &outcome.state {
            State::Answered => {
                answered += 1;
                if executed == 0 {
                    faults.push(format!("key {key} was answered and not executed"));
                }
            }
            State::Unknown => {
                unknown += 1;
                unknown_but_executed += usize::from(executed == 1);
                let (from, to) = (outcome.began - SLACK, outcome.ended + SLACK);
                if !kills.iter().any(|kill| (from..=to).contains(kill)) {
                    faults.push(format!("key {key} is unknown, and no gateway was killed"));
                }
            }
            State::Wrong(why) => faults.push(format!("key {key}: {why}")),
        }
    }
    for fault in faults.iter().take(SHOWN) {
        println!("{fault}");
    }
    let twice = executions.values().filter(|count| **count > 1).count();
    println!(
        "{} keys, sent {sent} times, {} kills: {answered} answered, {unknown} unknown (of which \
         {unknown_but_executed} were executed), {twice} executed twice, {} faults",
        outcomes.len(),
        kills.len(),
        faults.len()
    );
    faults.len()
}
