//! Metrics of the gateway's own process, read from `/proc` for each answer of `/metrics`.

use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::metrics::Metrics;
use super::version::COMMIT;

#[derive(Clone, Debug)]
pub(super) struct Process {
    started: SystemTime,
    /// The processor time that the counter has, in ticks.
    counted: Arc<Mutex<u64>>,
}

/// The numbers of `/proc/self/stat` that are shown.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Processor time, of the kernel's work for the process, too.
    ticks: u64,
    resident_pages: u64,
}

impl Process {
    pub(super) fn started_now() -> Self {
        Self { started: SystemTime::now(), counted: Arc::default() }
    }
}

impl Metrics {
    /// Reads the process anew. Numbers that cannot be read stay as they are.
    pub(super) fn show_process(&self) {
        self.build_info.with_label_values(&[env!("CARGO_PKG_VERSION"), COMMIT]).set(1);
        let started = self.process.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.start_time.with_label_values::<&str>(&[]).set(started.as_secs_f64());
        let max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.max_fds.with_label_values::<&str>(&[]).set(saturating(max));
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is for this list.
            let count = (open.count() as u64).saturating_sub(1);
            self.open_fds.with_label_values::<&str>(&[]).set(saturating(count));
        }
        let stat = fs::read_to_string("/proc/self/stat").ok();
        if let Some(Stat { ticks, resident_pages }) = stat.as_deref().and_then(parse) {
            let resident = resident_pages * page_size() as u64;
            self.resident_memory.with_label_values::<&str>(&[]).set(saturating(resident));
            let mut counted = self.process.counted.lock();
            let more = ticks.saturating_sub(*counted);
            *counted += more;
            let seconds = more as f64 / clock_ticks_per_second() as f64;
            self.cpu_seconds.with_label_values::<&str>(&[]).inc_by(seconds);
        }
    }
}

/// Reads `/proc/self/stat`. The program's name, in parentheses, may contain anything.
fn parse(stat: &str) -> Option<Stat> {
    let (_, numbers) = stat.rsplit_once(')')?;
    // The first one is the third of all, the state.
    let numbers: Vec<&str> = numbers.split_ascii_whitespace().collect();
    let number = |place: usize| numbers.get(place - 3)?.parse::<u64>().ok();
    Some(Stat { ticks: number(14)? + number(15)?, resident_pages: number(24)? })
}

fn saturating(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_moves_no_number() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 50 25 0 0 20 0 9 0 77 1000 321 99 1";
        assert_eq!(parse(stat), Some(Stat { ticks: 75, resident_pages: 321 }));
        assert_eq!(parse("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_is_shown() {
        let text = String::from_utf8(Metrics::new().render()).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap().parse().unwrap()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - value("process_start_time_seconds")).abs() < 60.0);
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!((3.0..value("process_max_fds")).contains(&value("process_open_fds")));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let version = env!("CARGO_PKG_VERSION");
        let info = format!("trunkline_build_info{{commit=\"{COMMIT}\",version=\"{version}\"}} 1\n");
        assert!(text.contains(&info), "{text}");
    }
}
