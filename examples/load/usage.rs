//! Reads a process's resource usage from `/proc`.

use std::fs;
use std::time::Duration;

/// In megabytes.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    pub now: f64,
    pub peak: f64,
}

/// The time a process has spent on a processor, in the system as well. Counted in ticks of 10 ms:
/// only differences over seconds say anything.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    from_ticks(field(pid, 11)? + field(pid, 12)?)
}

/// The time all processors together have been busy, with whatever it was.
pub fn busy_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let mut times = stat.lines().next()?.split_whitespace().skip(1);
    let mut next = || times.next()?.parse::<u64>().ok();
    let (user, nice, system, _idle, _iowait) = (next()?, next()?, next()?, next()?, next()?);
    let (irq, softirq, steal) = (next()?, next()?, next()?);
    from_ticks(user + nice + system + irq + softirq + steal)
}

fn from_ticks(ticks: u64) -> Option<Duration> {
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// The memory that is its own or shared, as far as it is in use.
pub fn memory(pid: u32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let megabytes = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key))?;
        let kilobytes: f64 = line[key.len()..].trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kilobytes / 1024.0)
    };
    Some(Memory { now: megabytes("VmRSS:")?, peak: megabytes("VmHWM:")? })
}

/// The process below `pid`, at any depth, whose first argument is `argument`.
pub fn find_below(pid: u32, argument: &str) -> Option<u32> {
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        for child in children_of(parent) {
            let command = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if command.split('\0').nth(1) == Some(argument) {
                return Some(child);
            }
            next.push(child);
        }
    }
    None
}

fn children_of(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| field(*pid, 1) == Some(parent.into())).collect()
}

/// A number of `/proc/PID/stat`, counted from the one after the name.
fn field(pid: u32, index: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, parentheses included.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(index)?.parse().ok()
}
