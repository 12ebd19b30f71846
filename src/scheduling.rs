//! How long threads run at a time where others wait for the same processor.
//!
//! The gateway's threads have a few microseconds of work, and then wait again; many calls wait for each of them. Servers may compute for
//! as long as they like. With the kernel's usual turns of some milliseconds a thread that wakes up may have to wait for
//! the end of somebody else's. One that has short turns comes before those with long ones, and in sum gets no more than they do.
//!
//! Linux has that since 6.12; before, it is ignored.

use std::io;
use std::time::Duration;

use libc::{SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, sched_attr, syscall};

/// The shortest that the kernel gives.
const SHORT: Duration = Duration::from_micros(100);
/// Whatever the kernel gives to all.
const USUAL: Duration = Duration::ZERO;

/// From now on this thread has short turns, and so have all threads and processes that it starts.
pub fn take_short_turns() -> io::Result<()> {
    take_turns_of(SHORT)
}

/// The usual turns again, for programs that know nothing of this.
pub fn take_usual_turns() -> io::Result<()> {
    take_turns_of(USUAL)
}

#[expect(unsafe_code, reason = "no library has these two calls to the system")]
fn take_turns_of(time: Duration) -> io::Result<()> {
    let size = u32::try_from(size_of::<sched_attr>()).map_err(io::Error::other)?;
    let mut attributes = sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: it writes as many bytes as `attributes` has, which lives until then.
    let done = unsafe { syscall(SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    check(done)?;
    // Whoever has chosen another way of scheduling has reasons.
    if !matches!(i32::try_from(attributes.sched_policy), Ok(SCHED_OTHER | SCHED_BATCH)) {
        return Ok(());
    }
    attributes.sched_runtime = u64::try_from(time.as_nanos()).map_err(io::Error::other)?;
    // SAFETY: it reads `attributes`, whose size is in it.
    check(unsafe { syscall(SYS_sched_setattr, 0, &raw const attributes, 0) })
}

fn check(done: libc::c_long) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The turns of this thread in milliseconds, where the kernel tells.
    fn turn() -> Option<String> {
        let about = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = about.lines().find(|line| line.starts_with("se.slice"))?;
        Some(line.split_whitespace().last()?.to_owned())
    }

    #[test]
    fn turns_are_short_until_they_are_the_usual_ones_again() {
        // In a thread of its own: what is set is the thread's.
        let turns = std::thread::spawn(|| {
            let usual = turn()?;
            take_short_turns().unwrap();
            let inherited = std::thread::spawn(turn).join().unwrap();
            let short = turn();
            take_usual_turns().unwrap();
            Some((usual, short, inherited, turn()))
        });
        let Some((usual, short, inherited, again)) = turns.join().unwrap() else {
            eprintln!("this kernel does not tell");
            return;
        };
        assert_eq!((short.as_deref(), inherited.as_deref()), (Some("100000"), Some("100000")));
        assert_eq!(again, Some(usual));
    }
}
