//! The system's table of processes, as far as it is needed to find what a server has started.

use std::collections::HashMap;
use std::fs;

use rustix::process::Pid;

struct Entry {
    pid: i32,
    parent: i32,
    session: i32,
}

/// Every process whose chain of parents leads to `ancestor`. Ended ones that wait to be collected by
/// their parent count too.
pub(crate) fn descendants_of(ancestor: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in entries() {
        children.entry(entry.parent).or_default().push(entry.pid);
    }
    let mut found = vec![];
    let mut next = vec![ancestor.as_raw_pid()];
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            next.push(child);
        }
    }
    found
}

/// Every process of a session.
pub(crate) fn members_of_session(session: Pid) -> Vec<Pid> {
    let session = session.as_raw_pid();
    entries()
        .filter(|entry| entry.session == session)
        .filter_map(|entry| Pid::from_raw(entry.pid))
        .collect()
}

/// What everything below `ancestor` uses of the machine's memory, in bytes.
pub(crate) fn memory_below(ancestor: Pid) -> u64 {
    let resident = |pid: Pid| {
        let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    };
    descendants_of(ancestor).into_iter().filter_map(resident).sum()
}

fn entries() -> impl Iterator<Item = Entry> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|dir| {
        let pid = dir.file_name().to_str()?.parse().ok()?;
        // Gone in the meantime, or not ours to see: not there, as far as we are concerned.
        parse(pid, &fs::read_to_string(dir.path().join("stat")).ok()?)
    })
}

/// `PID (NAME) STATE PARENT GROUP SESSION …`, where the name may hold anything, parentheses included.
fn parse(pid: i32, stat: &str) -> Option<Entry> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Entry { pid, parent, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let entry = parse(7, "7 (a) b) S 3 5 6 0 -1").unwrap();
        assert_eq!((entry.pid, entry.parent, entry.session), (7, 3, 6));
    }

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants_of(rustix::process::getpid()).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
