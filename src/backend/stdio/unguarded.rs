//! Servers on systems without guards: each is the leader of a process group. If the gateway is
//! killed, its servers see the end of their input and nothing else.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use super::process::ExitReason;
use super::sandbox::{PrivateDirectory, Profile};

/// The process group of a server.
#[derive(Debug)]
pub(super) struct Keeper(Pid);

/// Returns the command that starts `program`, in its private directory.
pub(super) fn command(
    _guard: &Path,
    program: &Path,
    args: &[String],
    profile: &Profile,
) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    if let Some(path) = &profile.directory {
        // `clean_up` removes the directory.
        std::mem::forget(PrivateDirectory::make(path, None)?);
        command.current_dir(path);
    }
    Ok(command)
}

impl Keeper {
    pub(super) fn new(pid: Pid) -> io::Result<Self> {
        Ok(Self(pid))
    }

    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    /// Returns `None`: memory is known on Linux only.
    pub(super) async fn memory(&self) -> Option<u64> {
        None
    }
}

/// Kills what the server has left in its group, and removes its private directory.
pub(super) async fn clean_up(_reason: &ExitReason, group: Pid, directory: Option<PathBuf>) {
    let _ = kill_process_group(group, Signal::KILL);
    if let Some(directory) = directory {
        let _ = tokio::fs::remove_dir_all(directory).await;
    }
}

impl From<ExitStatus> for ExitReason {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}
