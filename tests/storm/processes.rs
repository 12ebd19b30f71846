//! The processes of the storm, found through `/proc`: to kill them, and to see that none is left.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, getpid, kill_process};

/// The process that last noted its start in `log`, if it still runs.
pub fn last_started(log: &Path) -> Option<Pid> {
    let pid = Pid::from_raw(fs::read_to_string(log).ok()?.lines().last()?.parse().ok()?)?;
    mentions(pid, log).then_some(pid)
}

/// How often a server has started.
pub fn starts(log: &Path) -> usize {
    fs::read_to_string(log).map_or(0, |log| log.lines().count())
}

/// Kills a server, or the guard above it.
pub fn kill(server: Pid, log: &Path, guard_instead: bool) -> bool {
    let target = if guard_instead { parent(server) } else { Some(server) };
    // Never the driver itself, nor whoever has adopted an orphan.
    target.is_some_and(|pid| mentions(pid, log) && kill_process(pid, Signal::KILL).is_ok())
}

/// Everything that has `dir` among its arguments, and every child of this process.
pub fn left_over(dir: &Path) -> Vec<i32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| mentions(*pid, dir) || parent(*pid) == Some(getpid()))
        .map(Pid::as_raw_pid)
        .collect()
}

/// Descriptors this process has open.
pub fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn mentions(pid: Pid, path: &Path) -> bool {
    let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
    String::from_utf8_lossy(&arguments).contains(&*path.to_string_lossy())
}

/// `PID (NAME) STATE PARENT …`, where the name may hold anything.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Pid::from_raw(fields.split(' ').nth(1)?.parse().ok()?)
}
