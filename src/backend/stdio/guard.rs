//! The guard: a small process between the gateway and each server, so that no server outlives the
//! gateway, however the gateway ends.
//!
//! Neither process groups nor the parent-death signal reach a grandchild that made its own session,
//! and a killed gateway cannot clean up. The guard can. It is this executable, run again, and it is
//! the parent of the server and the subreaper of the server's orphans.
//!
//! - The gateway ends: the guard kills all its descendants.
//! - The server ends: the guard kills what is left and passes on the exit code.
//! - The guard gets TERM: it sends TERM to the server, then KILL.
//!
//! The guard hands the gateway's pipes down to the server and keeps none.
//!
//! The guard itself is not confined, because it has to clean up. The process that becomes the
//! server confines itself ([`super::sandbox::Confinement`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{SIGCHLD, SIGTERM, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, kill_process, kill_process_group,
    pidfd_open, set_child_subreaper, setsid, wait,
};
use tokio::time::Instant;

use super::proc_table;
use super::process::TERM_GRACE;
use super::sandbox::{
    CANNOT_CONFINE, CANNOT_RUN, ConfineError, Confinement, NO_DIRECTORY, PrivateDirectory, Profile,
    close_inherited, make_undumpable,
};

/// Time to wait for killed processes. A process stuck in the kernel may never exit.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// Exit code for a server that ignored TERM and was killed, as a shell reports signal 9.
const KILLED: u8 = 128 + 9;

/// Runs `program`, confined by `profile`, until the program or `gateway` ends.
pub fn run(gateway: u32, profile: &str, program: &OsStr, args: &[OsString]) -> ExitCode {
    match try_run(gateway, profile, program, args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Nobody may be left to read it.
            let _ = writeln!(io::stderr(), "{error}");
            if matches!(error, ConfineError::Directory { .. }) {
                let _ = kill_process(getpid(), NO_DIRECTORY);
            }
            ExitCode::from(match error {
                ConfineError::Run { .. } | ConfineError::Guard(_) => CANNOT_RUN,
                _ => CANNOT_CONFINE,
            })
        }
    }
}

fn try_run(
    gateway: u32,
    profile: &str,
    program: &OsStr,
    args: &[OsString],
) -> Result<u8, ConfineError> {
    // Must come first: at this point every open descriptor is an inherited one.
    close_inherited().map_err(ConfineError::Descriptors)?;
    let Some(gateway_end) = become_guard(gateway)? else { return Ok(0) };
    let profile: Profile = serde_json::from_str(profile)?;
    let is_in_sandbox = profile.reach.is_some();
    // Dropped, and thereby removed, when no process is left that could use it.
    let _token = profile.token_directory.clone().map(PrivateDirectory::existing);
    let directory = make_directory(&profile)?;
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    if let Some(directory) = &directory {
        command.current_dir(directory.path());
    }
    Confinement::prepare(profile)?.impose_on(&mut command);
    guard(&gateway_end, || {
        command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied if is_in_sandbox => {
                ConfineError::OwnProgram(program.into())
            }
            _ => ConfineError::Run { program: program.into(), source },
        })
    })
}

/// Makes this process a guard. Returns the gateway's pidfd, or `None` if the gateway has ended.
fn become_guard(gateway: u32) -> io::Result<Option<OwnedFd>> {
    let gateway = Pid::from_raw(gateway.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    // The guard's environment has the server's secrets, and other servers may run as the same user.
    make_undumpable()?;
    // In a session of its own the guard gets no signals from the gateway's terminal.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    // Opened before the parent is checked: if the gateway has died, one of the two shows it.
    let gateway_end = pidfd_open(gateway, PidfdFlags::empty())?;
    Ok((getppid() == Some(gateway)).then_some(gateway_end))
}

fn make_directory(profile: &Profile) -> Result<Option<PrivateDirectory>, ConfineError> {
    let Some(path) = &profile.directory else { return Ok(None) };
    match PrivateDirectory::make(path, profile.user.as_ref()) {
        Ok(directory) => Ok(Some(directory)),
        Err(source) => {
            let parent = path.parent().unwrap_or(path).to_owned();
            Err(ConfineError::Directory { parent, source })
        }
    }
}

/// Starts the server, waits until it and all its descendants are gone, and returns its exit code.
fn guard(
    gateway_end: &OwnedFd,
    start: impl FnOnce() -> Result<Child, ConfineError>,
) -> Result<u8, ConfineError> {
    // Blocked before the server starts, so that no signal is missed.
    let signals = block_signals()?;
    // Started from the main thread: the parent-death signal fires when the starting thread ends.
    let server = Pid::from_child(&start()?);
    let ended = watch(server, &signals, gateway_end);
    // A server that was not reaped yet still has its pid, so its whole group can be killed at once.
    if !matches!(ended, Ok(Ended::Exited(_))) {
        let _ = kill_process_group(server, Signal::KILL);
    }
    kill_descendants();
    Ok(exit_code(ended?))
}

/// Blocks SIGCHLD and SIGTERM, and returns the descriptor that reports them.
fn block_signals() -> io::Result<SignalFd> {
    let blocked = SigSet::from_iter([SIGCHLD, SIGTERM]);
    blocked.thread_block()?;
    Ok(SignalFd::with_flags(&blocked, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

enum Ended {
    Exited(ExitStatus),
    /// The server ignored TERM for [`TERM_GRACE`].
    Overdue,
    GatewayGone,
}

/// Waits until the server ends, is overdue after a TERM, or the gateway ends.
fn watch(server: Pid, signals: &SignalFd, gateway_end: &OwnedFd) -> io::Result<Ended> {
    release_pipes()?;
    let mut kill_at: Option<Instant> = None;
    loop {
        if let Some(signal) = signals.read_signal()?
            && signal.ssi_signo.cast_signed() == SIGTERM as i32
        {
            let _ = kill_process_group(server, Signal::TERM);
            // A stopped process handles TERM only after it continues.
            let _ = kill_process_group(server, Signal::CONT);
            kill_at.get_or_insert(Instant::now() + TERM_GRACE);
        }
        if let Some(status) = reap(server)? {
            return Ok(Ended::Exited(status));
        }
        let left = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Ended::Overdue);
        }
        let mut fds =
            [PollFd::new(gateway_end, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        let left = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(Ended::GatewayGone);
        }
    }
}

/// Closes the guard's ends of the pipes: only then do the gateway and the server see each other's
/// end of file.
fn release_pipes() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Reaps all zombies, orphans included. Returns the server's status if it was among them.
fn reap(server: Pid) -> io::Result<Option<ExitStatus>> {
    let mut server_status = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == server => {
                server_status = Some(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(server_status),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills all descendants, whatever group or session they moved to. Repeats, because a process may
/// have started another one before it was killed.
#[expect(clippy::disallowed_methods, reason = "there is no runtime whose worker would block")]
fn kill_descendants() {
    let give_up = Instant::now() + REAP_TIMEOUT;
    while has_descendants() && Instant::now() < give_up {
        for pid in proc_table::descendants_of(getpid()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(2));
    }
}

/// Reaps zombies and returns whether any child is left. Orphans become children of the guard, so
/// looking at children is enough.
fn has_descendants() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn exit_code(ended: Ended) -> u8 {
    let status = match ended {
        Ended::Exited(status) => status,
        Ended::Overdue => return KILLED,
        Ended::GatewayGone => return 0,
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => 128 + u8::try_from(signal).unwrap_or(0),
        (None, None) => u8::MAX,
    }
}
