//! Starts and stops a server's process, and says how it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::keeper::{self, Keeper};
use super::line_tail::LineTail;
use super::sandbox::{Kernel, PlanError, PrivateDirectory, plan};
use super::token_file::{ProgramToken, TokenFile};
use crate::backend::instance::redaction::Redaction;
use crate::config;

/// Variables that a server inherits from the gateway. All others must be configured.
const ENV_BASE: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// Time for a server to exit after its standard input was closed, before TERM.
const STDIN_GRACE: Duration = Duration::from_secs(2);
/// Time from TERM to KILL.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(2);
/// Time for the guard to clean up, on top of [`TERM_GRACE`].
const GUARD_GRACE: Duration = Duration::from_secs(2);

/// A running server, under its guard. Sends TERM when dropped without [`Process::stop`].
#[derive(Debug)]
pub struct Process {
    keeper: Keeper,
    exit: watch::Receiver<Option<ExitReason>>,
    stderr: LineTail,
}

/// Says how a server's process ended. The sentence may be shown to callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitReason {
    Code(i32),
    Signal(i32),
    /// The process could not apply its sandbox, so the program never ran.
    NotConfined,
    /// The private directory could not be made, so the program never ran.
    NoDirectory,
    /// Somebody killed the guard. The server's own status is lost.
    GuardKilled,
    /// The gateway could not wait for the guard.
    Unobserved(String),
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "it ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "it was ended by signal {signal}"),
            Self::NotConfined => f.write_str("it could not be confined as configured"),
            Self::NoDirectory => f.write_str("its private directory could not be made"),
            Self::GuardKilled => f.write_str("its guard was killed"),
            Self::Unobserved(error) => write!(f, "its end could not be observed: {error}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("the program `{program}` was not found{hint}")]
    NotFound {
        program: String,
        /// Names the places that were searched, or the text to write instead.
        hint: String,
    },
    #[error(
        "`command` has the program `{first}` and its arguments in one text: write \
         `command = \"{first}\"` and each argument as a text of its own in `args`"
    )]
    NotOneProgram { first: String },
    #[error("the program `{0}` is not an executable file")]
    NotExecutable(PathBuf),
    #[error("`cwd` is {}, and there is no such directory{}", .0.display(), tilde_hint(.0))]
    NoDirectory(PathBuf),
    #[error("the file for its access token cannot be made: {0}; make room in TMPDIR")]
    TokenFile(std::io::Error),
    #[error(transparent)]
    MissingSecret(#[from] config::MissingSecret),
    #[error(transparent)]
    Confine(#[from] PlanError),
    #[error("the process could not be started: {0}")]
    System(#[from] std::io::Error),
}

impl Process {
    /// Starts a server. `guard` is this executable, run again to watch over the server. `stderr`
    /// keeps the last lines of standard error.
    pub fn spawn(
        guard: &Path,
        server: &config::Program,
        secrets: &config::Secrets,
        token: Option<ProgramToken>,
        stderr: LineTail,
    ) -> Result<(Self, ChildStdin, ChildStdout), SpawnError> {
        let filled = server.env.iter().map(|(name, value)| Ok((name, value.fill(secrets)?)));
        let env: BTreeMap<_, _> = filled.collect::<Result<_, config::MissingSecret>>()?;
        let path =
            env.iter().find(|(name, _)| name.as_str() == "PATH").map(|(_, path)| path.expose());
        let program = find_program(&server.command, path)?;
        let plan = plan(server, &Kernel::current())?;
        for missing in &plan.missing {
            tracing::warn!(
                program = %program.display(),
                "not in force, and `sandbox.optional` allows it: {missing}"
            );
        }
        let mut profile = plan.profile;
        if server.cwd.is_none() {
            profile.directory = Some(PrivateDirectory::new_path()?);
        }
        let file =
            token.as_ref().map(|it| TokenFile::make(&it.token.secret, profile.user.as_ref()));
        let file = file.transpose().map_err(SpawnError::TokenFile)?.map(Arc::new);
        profile.token_directory = file.as_ref().map(|file| file.directory().to_owned());
        let variable =
            token.as_ref().zip(file.as_ref()).map(|(it, file)| (&it.variable, file.path()));
        let mut command = keeper::command(guard, &program, &server.args, &profile)?;
        command
            .env_clear()
            .envs(ENV_BASE.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(profile.user.iter().map(|user| ("USER", &user.name)))
            .envs(profile.user.iter().map(|user| ("HOME", &user.home)))
            .envs(env.iter().map(|(name, value)| (name, value.expose())))
            .envs(variable)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(dir) = &server.cwd {
            if !dir.is_dir() {
                return Err(SpawnError::NoDirectory(std::path::absolute(dir)?));
            }
            command.current_dir(dir);
        }
        stop_ignoring_sigchld()?;
        let mut child = command.spawn()?;
        let (Some(pid), Some(stdin), Some(stdout), Some(errors)) =
            (child.id(), child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("the child was just started, with all three streams piped");
        };
        let pid = Pid::from_raw(pid.cast_signed())
            .ok_or_else(|| std::io::Error::other("no process id"))?;
        let keeper = Keeper::new(pid)?;
        tokio::spawn(stderr.clone().drain(errors, Redaction::new(secrets)));
        let (exited, exit) = watch::channel(None);
        tokio::spawn(async move {
            let reaped = reap(child, pid, profile.directory);
            let reason = match token.zip(file) {
                None => reaped.await,
                Some((token, file)) => tokio::select! {
                    reason = reaped => reason,
                    () = file.keep(token) => unreachable!("a token is kept for ever"),
                },
            };
            exited.send(Some(reason))
        });
        Ok((Self { keeper, exit, stderr }, stdin, stdout))
    }

    /// Returns a channel that gets the exit reason once the server and all its descendants are
    /// gone.
    pub fn exit(&self) -> watch::Receiver<Option<ExitReason>> {
        self.exit.clone()
    }

    /// Stops the server and all its descendants: waits, then TERM, then KILL. The server's standard
    /// input must be closed already.
    pub async fn stop(self) {
        if timeout(STDIN_GRACE, exited(self.exit())).await.is_ok() {
            return;
        }
        self.signal(Signal::TERM);
        if timeout(TERM_GRACE + GUARD_GRACE, exited(self.exit())).await.is_ok() {
            return;
        }
        self.signal(Signal::KILL);
        // A process stuck in the kernel may never exit, so this wait is bounded too.
        let _ = timeout(GUARD_GRACE, exited(self.exit())).await;
    }

    /// Sends TERM without waiting. A stuck server does not notice that its standard input was
    /// closed.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Returns the resident memory of the server and all its descendants, in bytes.
    pub async fn memory(&self) -> Option<u64> {
        self.keeper.memory().await
    }

    pub fn stderr(&self) -> &LineTail {
        &self.stderr
    }

    fn signal(&self, signal: Signal) {
        // A group without a guard must not be signalled when its id may be another one's.
        if self.exit.borrow().is_none() {
            self.keeper.signal(signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// Installs a handler for SIGCHLD, which undoes an inherited SIG_IGN: under SIG_IGN no exit status
/// is reported. Guards would inherit SIG_IGN too; they do not inherit a handler.
fn stop_ignoring_sigchld() -> std::io::Result<()> {
    signal(SignalKind::child()).map(drop)
}

/// Waits for the exit reason that [`Process::exit`] reports.
pub async fn exited(mut exit: watch::Receiver<Option<ExitReason>>) -> ExitReason {
    let exit = exit.wait_for(Option::is_some).await;
    let exit = exit.ok().and_then(|exit| exit.clone());
    exit.unwrap_or_else(|| ExitReason::Unobserved("nobody waited for it".to_owned()))
}

/// Waits for the guard, so that no zombie is left. Cleans up in its place if it was killed.
async fn reap(mut guard: Child, session: Pid, directory: Option<PathBuf>) -> ExitReason {
    let reason = match guard.wait().await {
        Ok(status) => status.into(),
        Err(error) => return ExitReason::Unobserved(error.to_string()),
    };
    keeper::clean_up(&reason, session, directory).await;
    reason
}

/// Returns the full path of a program. Looked up before anything starts, so that the error can name
/// a missing program.
fn find_program(program: &Path, path: Option<&str>) -> Result<PathBuf, SpawnError> {
    if program.components().count() > 1 {
        return match program.metadata() {
            // Absolute, because the server may start in another directory.
            Ok(_) if is_executable(program) => Ok(std::path::absolute(program)?),
            Ok(_) => Err(SpawnError::NotExecutable(program.to_owned())),
            Err(_) => Err(not_found(program, String::new())),
        };
    }
    let path = path.map(Into::into).or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| {
            not_found(
                program,
                format!(" on the PATH {}: install it, or write its full path", path.display()),
            )
        })
}

/// Says that there is no such program, and what was probably meant.
fn not_found(program: &Path, searched: String) -> SpawnError {
    let text = program.display().to_string();
    if let Some((first, _)) = text.trim().split_once(char::is_whitespace) {
        // The rest may be secret.
        return SpawnError::NotOneProgram { first: first.to_owned() };
    }
    let hint = if let Some(rest) = text.strip_prefix("~/") {
        let home = std::env::var("HOME").unwrap_or_else(|_| "/home/NAME".to_owned());
        format!(": no shell expands `~`, so write `{home}/{rest}`")
    } else if program.is_relative() && program.components().count() > 1 {
        let directory = std::env::current_dir().unwrap_or_default();
        format!(" in {}, where Trunkline was started: write the full path", directory.display())
    } else {
        searched
    };
    SpawnError::NotFound { program: text, hint }
}

fn tilde_hint(path: &Path) -> &'static str {
    match path.components().any(|part| part.as_os_str() == "~") {
        true => "; no shell expands `~`, so write the full path",
        false => "",
    }
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
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
            None,
            LineTail::default(),
        );
        let error = spawned.err().unwrap().to_string();
        assert_eq!(error, "`cwd` is /no/such, and there is no such directory");
    }

    #[test]
    fn a_missing_program_is_named_with_where_it_was_looked_for() {
        let error = find_program(Path::new("no-such-program"), Some("/bin:/usr/bin")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the program `no-such-program` was not found on the PATH /bin:/usr/bin: install it, or \
             write its full path"
        );
        let error = find_program(Path::new("/etc/passwd"), None).unwrap_err();
        assert_eq!(error.to_string(), "the program `/etc/passwd` is not an executable file");
        assert!(find_program(Path::new("sh"), Some("/bin")).is_ok());
    }
}
