//! Reads `/proc` to find the processes that a server has started.

use std::collections::HashMap;
use std::fs;

use rustix::process::Pid;

struct Entry {
    pid: i32,
    parent: i32,
    session: i32,
}

/// Returns every process whose chain of parents leads to `ancestor`, zombies included.
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

pub(crate) fn members_of_session(session: Pid) -> Vec<Pid> {
    let session = session.as_raw_pid();
    entries()
        .filter(|entry| entry.session == session)
        .filter_map(|entry| Pid::from_raw(entry.pid))
        .collect()
}

/// Returns the resident memory of all descendants of `ancestor`, in bytes.
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
        // An unreadable entry has exited in the meantime, or belongs to somebody else: skip it.
        parse(pid, &fs::read_to_string(dir.path().join("stat")).ok()?)
    })
}

/// Parses `PID (NAME) STATE PARENT GROUP SESSION …`. The name may contain parentheses.
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
    fn a_name_may_contain_parentheses() {
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
