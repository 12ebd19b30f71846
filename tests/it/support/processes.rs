//! Processes as the system sees them.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Every process with this text in the environment it was started with, and its guard, whose
/// environment only root can read.
pub fn with_environment(text: &str) -> Vec<i32> {
    let has_text = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| memchr::memmem::find(&environ, text.as_bytes()).is_some())
    };
    let found: BTreeSet<i32> = all().filter(has_text).collect();
    let is_guard = |pid: &i32| {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split('\0').nth(1) == Some("guard")
    };
    let guards = found.iter().filter_map(|pid| parent_of(*pid)).filter(is_guard);
    found.iter().copied().chain(guards).collect::<BTreeSet<_>>().into_iter().collect()
}

fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|dir| dir.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns whether there is such a process; one that has ended and was not collected counts.
pub fn exists(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

/// Returns whether the process runs.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Returns whether a process does nothing: each of its threads is stopped, or gone.
pub fn is_stopped(pid: i32) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_stopped = |task: fs::DirEntry| {
        // `PID (NAME) STATE …`
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
    };
    tasks.all(is_stopped)
}

/// The processes that a process has started.
pub fn children_of(parent: i32) -> Vec<i32> {
    all().filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The variables a process was started with; none of one that has ended.
pub fn environment_of(pid: i32) -> Vec<String> {
    words_of(pid, "environ")
}

/// The arguments a process was started with; none of one that has ended.
pub fn arguments_of(pid: i32) -> Vec<String> {
    words_of(pid, "cmdline")
}

fn words_of(pid: i32, file: &str) -> Vec<String> {
    let words = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    words.split_terminator('\0').map(str::to_owned).collect()
}

/// Sends a signal.
pub fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
