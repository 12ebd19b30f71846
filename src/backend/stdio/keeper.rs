//! The process that a server lives and dies with: its guard.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tokio::process::Command;

use super::proc_table;
use super::process::ExitReason;
use super::sandbox::{CANNOT_CONFINE, NO_DIRECTORY, Profile};

/// A running guard.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Still names the guard when its pid has been reused.
    pidfd: OwnedFd,
    pid: Pid,
}

/// Returns the command that starts `program`, confined by `profile`, under a guard. `guard` is this
/// executable.
pub(super) fn command(
    guard: &Path,
    program: &Path,
    args: &[String],
    profile: &Profile,
) -> io::Result<Command> {
    let mut command = Command::new(guard);
    command
        .arg("guard")
        .arg(std::process::id().to_string())
        .arg(serde_json::to_string(profile)?)
        // Ends the guard's own options, so no argument of the server is taken for one.
        .arg("--")
        .arg(program)
        .args(args);
    Ok(command)
}

impl Keeper {
    /// Watches over a guard that was just started.
    pub(super) fn new(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ = kill_process(pid, Signal::TERM);
        })?;
        Ok(Self { pidfd, pid })
    }

    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Returns the resident memory of the server and all its descendants, in bytes.
    pub(super) async fn memory(&self) -> Option<u64> {
        let guard = self.pid;
        let memory = tokio::task::spawn_blocking(move || proc_table::memory_below(guard)).await;
        memory.ok().filter(|bytes| *bytes > 0)
    }
}

/// Cleans up in the place of a guard that was killed.
pub(super) async fn clean_up(reason: &ExitReason, session: Pid, directory: Option<PathBuf>) {
    if *reason != ExitReason::GuardKilled {
        return;
    }
    for pid in proc_table::members_of_session(session) {
        let _ = kill_process(pid, Signal::KILL);
    }
    if let Some(directory) = directory {
        let _ = tokio::fs::remove_dir_all(directory).await;
    }
}

impl From<ExitStatus> for ExitReason {
    /// Reads the guard's status. The guard reports its server's signal as shells do: 128 + signal.
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) if code == i32::from(CANNOT_CONFINE) => Self::NotConfined,
            Some(code @ 129..160) => Self::Signal(code - 128),
            Some(code) => Self::Code(code),
            None if status.signal() == Some(NO_DIRECTORY.as_raw()) => Self::NoDirectory,
            None => Self::GuardKilled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_reason_says_how_the_process_ended() {
        let exit_code = |code: i32| ExitReason::from(ExitStatus::from_raw(code << 8)).to_string();
        assert_eq!(exit_code(3), "it ended with exit code 3");
        assert_eq!(exit_code(128 + 9), "it was ended by signal 9");
        assert_eq!(exit_code(CANNOT_CONFINE.into()), "it could not be confined as configured");
        let no_directory = ExitStatus::from_raw(NO_DIRECTORY.as_raw());
        assert_eq!(ExitReason::from(no_directory), ExitReason::NoDirectory);
        for code in (1..=128).filter(|code| *code != i32::from(CANNOT_CONFINE)) {
            assert_eq!(exit_code(code), format!("it ended with exit code {code}"));
        }
        assert_eq!(ExitReason::from(ExitStatus::from_raw(9)), ExitReason::GuardKilled);
    }
}
