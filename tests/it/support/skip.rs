//! Tests that cannot be run here say so.

use std::collections::BTreeSet;
use std::io::Write as _;

use parking_lot::Mutex;

/// Says that tests are skipped for want of something. CI refuses to skip.
pub fn missing(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI refuses to skip: {what}");
    skipped(what);
}

/// Says why tests are skipped: once, however many they are, and past the test harness, which shows
/// nothing that a test prints as long as it passes.
pub fn skipped(why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().insert(why.to_owned()) {
        let line = format!("skipped: {why}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}
