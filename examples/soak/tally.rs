//! Counts of calls by outcome.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Errors that a caller of a killed server may see; nothing else may fail.
const EXPLAINED: [&str; 2] = ["backend_exited", "server_unavailable"];
/// Kept of each kind of surprise.
const EXAMPLES_MAX: usize = 20;

#[derive(Default)]
pub struct Tally {
    answered: AtomicU64,
    hung_up: AtomicU64,
    explained: AtomicU64,
    kills: AtomicU64,
    reloads: AtomicU64,
    mixed_up: AtomicU64,
    /// Errors that nothing explains, and how often each was seen.
    unexplained: Mutex<BTreeMap<String, u64>>,
}

/// The outcome of one call.
pub enum Outcome {
    /// The text that the tool returned.
    Text(String),
    /// The code and the sentence of an error.
    Error(String, String),
}

impl Tally {
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub fn note(&self, what: &str, may_be_killed: bool, mark: &str, outcome: Outcome) {
        match outcome {
            Outcome::Text(text) if text == mark => add(&self.answered),
            Outcome::Text(text) => {
                add(&self.mixed_up);
                println!("MIXED UP: {what} sent {mark:?} and got {text:?}");
            }
            Outcome::Error(code, _) if may_be_killed && EXPLAINED.contains(&&*code) => {
                add(&self.explained);
            }
            Outcome::Error(code, detail) => self.note_surprise(format!("{what}: {code}: {detail}")),
        }
    }

    pub fn note_surprise(&self, surprise: String) {
        let mut unexplained = self.unexplained.lock();
        if unexplained.len() < EXAMPLES_MAX || unexplained.contains_key(&surprise) {
            *unexplained.entry(surprise).or_default() += 1;
        } else {
            *unexplained.entry("others".to_owned()).or_default() += 1;
        }
    }

    pub fn note_hung_up(&self) {
        add(&self.hung_up);
    }

    pub fn note_kill(&self, killed: bool) {
        self.kills.fetch_add(u64::from(killed), Ordering::Relaxed);
    }

    pub fn note_reload(&self) {
        add(&self.reloads);
    }

    /// Prints all counts. Returns whether nothing is wrong.
    pub fn print(&self) -> bool {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let unexplained = self.unexplained.lock();
        let surprises: u64 = unexplained.values().sum();
        println!(
            "{} calls answered, {} callers hung up, {} calls ended with a killed server \
             ({} kills), {} reloads; {} mixed up, {surprises} errors without a reason",
            get(&self.answered),
            get(&self.hung_up),
            get(&self.explained),
            get(&self.kills),
            get(&self.reloads),
            get(&self.mixed_up),
        );
        for (surprise, count) in &*unexplained {
            println!("  {count} x {surprise}");
        }
        get(&self.answered) > 0 && get(&self.mixed_up) == 0 && surprises == 0
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
