//! Starting and stopping a server's process.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::guard::TERM_GRACE;
use super::proc_table;
use super::sandbox::{CANNOT_CONFINE, Kernel, PlanError, PrivateDirectory, plan};
use super::stderr::StderrTail;
use crate::backend::instance::redaction::Redaction;
use crate::config;

/// What a server inherits from the gateway's environment; everything else must be configured.
const ENV_BASE: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// From the end of its input until it is told to end.
const STDIN_GRACE: Duration = Duration::from_secs(2);
/// What the guard needs beyond TERM and KILL to clean up.
const GUARD_GRACE: Duration = Duration::from_secs(2);

/// A running server, under its guard. Dropped without [`Process::stop`], it is told to end at once.
#[derive(Debug)]
pub struct Process {
    /// Names the guard even when its number has been given to another process.
    guard: OwnedFd,
    guard_pid: Pid,
    /// How it ended, once it has.
    exit: watch::Receiver<Option<String>>,
    stderr: StderrTail,
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// With where it was looked for.
    #[error("the program `{program}` was not found{searched}")]
    NotFound {
        /// As configured.
        program: String,
        /// Where.
        searched: String,
    },
    /// It is there, but cannot be run.
    #[error("the program `{0}` is not an executable file")]
    NotExecutable(PathBuf),
    /// Where it is to be started.
    #[error("`cwd` is {0}, and there is no such directory")]
    NoDirectory(PathBuf),
    /// A tenant's secret that it needs is not there.
    #[error(transparent)]
    MissingSecret(#[from] config::MissingSecret),
    /// It cannot be confined as configured.
    #[error(transparent)]
    Confine(#[from] PlanError),
    /// The system said no.
    #[error("the process could not be started: {0}")]
    System(#[from] std::io::Error),
}

impl Process {
    /// Starts a server. `guard` is this executable, which is run again to watch over it. What it last writes to standard
    /// error is kept in `stderr`.
    pub fn spawn(
        guard: &Path,
        server: &config::Program,
        secrets: &config::Secrets,
        stderr: StderrTail,
    ) -> Result<(Self, ChildStdin, ChildStdout), SpawnError> {
        let filled = server.env.iter().map(|(name, value)| Ok((name, value.fill(secrets)?)));
        let env: BTreeMap<_, _> = filled.collect::<Result<_, config::MissingSecret>>()?;
        let path =
            env.iter().find(|(name, _)| name.as_str() == "PATH").map(|(_, path)| path.expose());
        let program = find_program(&server.command, path)?;
        let plan = plan(server, &Kernel::current())?;
        for missing in &plan.missing {
            tracing::warn!(program = %program.display(), "not in force, and `sandbox.optional` allows it: {missing}");
        }
        let mut profile = plan.profile;
        if server.cwd.is_none() {
            profile.directory = Some(PrivateDirectory::new_path()?);
        }
        let mut command = Command::new(guard);
        command
            .arg("guard")
            .arg(std::process::id().to_string())
            .arg(serde_json::to_string(&profile).map_err(std::io::Error::from)?)
            // From here on nothing is for the guard, whatever it looks like.
            .arg("--")
            .arg(program)
            .args(&server.args)
            .env_clear()
            .envs(ENV_BASE.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(profile.user.iter().map(|user| ("USER", &user.name)))
            .envs(profile.user.iter().map(|user| ("HOME", &user.home)))
            .envs(env.iter().map(|(name, value)| (name, value.expose())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(dir) = &server.cwd {
            if !dir.is_dir() {
                return Err(SpawnError::NoDirectory(std::path::absolute(dir)?));
            }
            command.current_dir(dir);
        }
        see_ends()?;
        let mut child = command.spawn()?;
        let (Some(pid), Some(stdin), Some(stdout), Some(errors)) =
            (child.id(), child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("it was just started, with all three piped");
        };
        let pid = Pid::from_raw(pid.cast_signed())
            .ok_or_else(|| std::io::Error::other("no process id"))?;
        let guard = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
            let _ = kill_process(pid, Signal::TERM);
            std::io::Error::from(error)
        })?;
        tokio::spawn(stderr.clone().drain(errors, Redaction::new(secrets)));
        let (exited, exit) = watch::channel(None);
        tokio::spawn(
            async move { exited.send(Some(collect(child, pid, profile.directory).await)) },
        );
        Ok((Self { guard, guard_pid: pid, exit, stderr }, stdin, stdout))
    }

    /// Where the end of the server is told: how it ended, in words, once it and everything it started
    /// are gone.
    pub fn exit(&self) -> watch::Receiver<Option<String>> {
        self.exit.clone()
    }

    /// Ends the server, whose input must have been closed before: waits, then TERM, then KILL, to
    /// everything it has started.
    pub async fn stop(self) {
        if timeout(STDIN_GRACE, exited(self.exit())).await.is_ok() {
            return;
        }
        self.signal(Signal::TERM);
        if timeout(TERM_GRACE + GUARD_GRACE, exited(self.exit())).await.is_ok() {
            return;
        }
        self.signal(Signal::KILL);
        // One that is stuck in the kernel cannot be waited for.
        let _ = timeout(GUARD_GRACE, exited(self.exit())).await;
    }

    /// Tells it to end, without waiting for that: one that is stuck does not notice the end of its input.
    pub fn tell_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// What it and all it started use of the machine's memory, in bytes.
    pub async fn memory(&self) -> Option<u64> {
        let guard = self.guard_pid;
        let memory = tokio::task::spawn_blocking(move || proc_table::memory_below(guard)).await;
        memory.ok().filter(|bytes| *bytes > 0)
    }

    /// What it last wrote to standard error.
    pub fn stderr(&self) -> &StderrTail {
        &self.stderr
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.guard, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// Whoever started the gateway may have ignored how children end. That is inherited, by guards too, and the system then tells
/// nobody. A handler, which stays, ends that here, and programs do not inherit it.
fn see_ends() -> std::io::Result<()> {
    signal(SignalKind::child()).map(drop)
}

/// Waits for the end that [`Process::exit`] tells.
pub async fn exited(mut exit: watch::Receiver<Option<String>>) -> String {
    match exit.wait_for(Option::is_some).await {
        Ok(exit) => exit.clone().unwrap_or_default(),
        Err(_) => "its end was not observed".to_owned(),
    }
}

/// Waits for the guard, so that it never stays behind as a zombie, and says how it ended.
async fn collect(mut guard: Child, session: Pid, directory: Option<PathBuf>) -> String {
    match guard.wait().await {
        Ok(status) => {
            if status.code().is_none() {
                // Somebody killed the guard. What it guarded is still in its session.
                for pid in proc_table::members_of_session(session) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                if let Some(directory) = directory {
                    let _ = tokio::fs::remove_dir_all(directory).await;
                }
            }
            describe(status)
        }
        Err(error) => format!("its end could not be observed: {error}"),
    }
}

/// The full path of a program, looked up here so that a missing one is named before anything is started.
fn find_program(program: &Path, path: Option<&str>) -> Result<PathBuf, SpawnError> {
    let not_found =
        |searched| SpawnError::NotFound { program: program.display().to_string(), searched };
    if program.components().count() > 1 {
        return match program.metadata() {
            // Absolute, since the server may be started in another directory.
            Ok(_) if is_executable(program) => Ok(std::path::absolute(program)?),
            Ok(_) => Err(SpawnError::NotExecutable(program.to_owned())),
            Err(_) => Err(not_found(String::new())),
        };
    }
    let path = path.map(Into::into).or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| not_found(format!(" on the PATH {}", path.display())))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) if code == i32::from(CANNOT_CONFINE) => {
            "it could not be confined as configured".to_owned()
        }
        // The guard passes on a signal as shells do.
        Some(code @ 129..160) => format!("it was ended by signal {}", code - 128),
        Some(code) => format!("it ended with exit code {code}"),
        None => "its guard was killed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let program = config::Program {
            command: "/bin/sh".into(),
            cwd: Some("/no/such".into()),
            ..config::Program::default()
        };
        let spawned = Process::spawn(
            Path::new("guard"),
            &program,
            &config::Secrets::default(),
            StderrTail::default(),
        );
        let error = spawned.err().unwrap().to_string();
        assert_eq!(error, "`cwd` is /no/such, and there is no such directory");
    }

    #[test]
    fn a_missing_program_is_named_with_where_it_was_looked_for() {
        let error = find_program(Path::new("no-such-program"), Some("/bin:/usr/bin")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the program `no-such-program` was not found on the PATH /bin:/usr/bin"
        );
        let error = find_program(Path::new("/etc/passwd"), None).unwrap_err();
        assert_eq!(error.to_string(), "the program `/etc/passwd` is not an executable file");
        assert!(find_program(Path::new("sh"), Some("/bin")).is_ok());
    }
}
