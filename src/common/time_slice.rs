//! Time slices of threads that compete for a processor.
//!
//! Most work here, in the gateway and in its servers, takes microseconds, and somebody waits for
//! it. With the kernel's usual slices of a millisecond or more, a thread that wakes up may wait
//! until a busy server's slice ends. With short slices it does not, and no thread gets less in sum.
//!
//! Linux supports this since 6.12; older kernels ignore it.

use std::io;
use std::time::Duration;

use libc::{SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, sched_attr, syscall};

/// The kernel's minimum.
const SHORTEST: Duration = Duration::from_micros(100);

/// Sets short time slices for this thread, and for all threads and processes that it starts, the
/// servers included.
#[expect(unsafe_code, reason = "no library has these two calls to the system")]
pub fn use_short_time_slices() -> io::Result<()> {
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
    // SAFETY: writes as many bytes as `attributes` has, which outlives the call.
    let done = unsafe { syscall(SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    check(done)?;
    // A scheduling policy that the operator chose stays.
    if !matches!(i32::try_from(attributes.sched_policy), Ok(SCHED_OTHER | SCHED_BATCH)) {
        return Ok(());
    }
    attributes.sched_runtime = u64::try_from(SHORTEST.as_nanos()).map_err(io::Error::other)?;
    // SAFETY: reads `attributes`, which contains its size.
    check(unsafe { syscall(SYS_sched_setattr, 0, &raw const attributes, 0) })
}

fn check(done: libc::c_long) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns this thread's slice in nanoseconds, if the kernel tells.
    fn time_slice() -> Option<String> {
        let about = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = about.lines().find(|line| line.starts_with("se.slice"))?;
        Some(line.split_whitespace().last()?.to_owned())
    }

    #[test]
    fn slices_are_short_and_inherited() {
        // In a thread of its own, since the setting belongs to the thread.
        let slices = std::thread::spawn(|| {
            time_slice()?;
            use_short_time_slices().unwrap();
            Some([time_slice(), std::thread::spawn(time_slice).join().unwrap()])
        });
        let Some(slices) = slices.join().unwrap() else {
            eprintln!("this kernel does not tell");
            return;
        };
        assert_eq!(slices.each_ref().map(Option::as_deref), [Some("100000"); 2]);
    }
}
