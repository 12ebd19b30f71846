//! The guard: a small process between the gateway and each server it starts, so that no server outlives
//! the gateway, however the gateway ends.
//!
//! Neither process groups nor the parent-death signal reach a grandchild that made a session of its own,
//! and a gateway that is killed cannot clean up. The guard can: it is this executable run again, it is the
//! parent of the server and the adoptive parent of whatever the server leaves behind, and it watches the
//! gateway. When the gateway is gone it kills everything below it; when the server ends it kills what is
//! left and passes on the exit code; when it is told to stop it goes TERM, then KILL.
//!
//! The server's pipes are the gateway's own: the guard hands them down and keeps none.
//!
//! The guard itself is not confined, since it has to clean up: the process that becomes the server confines itself
//! ([`super::sandbox::Confinement`]).

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
use super::sandbox::{
    CANNOT_CONFINE, CANNOT_RUN, ConfineError, Confinement, PrivateDirectory, Profile,
    close_inherited, hide,
};

/// From TERM to KILL.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long killed processes are waited for. One that is stuck in the kernel cannot be helped.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// The server did not end when told to, and was killed: what a shell says of signal 9.
const KILLED: u8 = 128 + 9;

/// Runs `program` under guard, confined by `profile`, until it ends, or `gateway` does.
pub fn run(gateway: u32, profile: &str, program: &OsStr, args: &[OsString]) -> ExitCode {
    match try_run(gateway, profile, program, args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Whoever would read it may be gone.
            let _ = writeln!(io::stderr(), "{error}");
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
    // First of all, as long as everything that is open is inherited.
    close_inherited().map_err(ConfineError::Descriptors)?;
    let Some(gateway_end) = take_post(gateway)? else { return Ok(0) };
    let profile: Profile = serde_json::from_str(profile)?;
    let is_in_sandbox = profile.reach.is_some();
    // It goes when nothing is left that could use it.
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

/// Makes this process a guard; gives what shows the gateway's end, if that has not come yet.
fn take_post(gateway: u32) -> io::Result<Option<OwnedFd>> {
    let gateway = Pid::from_raw(gateway.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    // Its environment is the server's, secrets included, and its user may be that of other servers.
    hide()?;
    // A session of its own: keys pressed at the gateway's terminal are for the gateway.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    // Opened before the look at the parent: if the gateway died earlier than this, one of the two shows it.
    let gateway_end = pidfd_open(gateway, PidfdFlags::empty())?;
    Ok((getppid() == Some(gateway)).then_some(gateway_end))
}

fn make_directory(profile: &Profile) -> Result<Option<PrivateDirectory>, ConfineError> {
    let Some(path) = &profile.directory else { return Ok(None) };
    match PrivateDirectory::make(path, profile.user.as_ref()) {
        Ok(directory) => Ok(Some(directory)),
        Err(source) => Err(ConfineError::Directory { path: path.clone(), source }),
    }
}

/// Starts the server and stays until nothing is left of it; gives its exit code.
fn guard(
    gateway_end: &OwnedFd,
    start: impl FnOnce() -> Result<Child, ConfineError>,
) -> Result<u8, ConfineError> {
    // Before the server is started, so that none is missed.
    let signals = hear_signals()?;
    // From this thread, which lives as long as the guard, since that is what the kernel takes for its end.
    let server = Pid::from_child(&start()?);
    let ended = watch(server, &signals, gateway_end);
    // However it ended, nothing is left behind. A server that was not collected yet still has its
    // number, and its group can be killed at one stroke.
    if !matches!(ended, Ok(Ended::ByItself(_))) {
        let _ = kill_process_group(server, Signal::KILL);
    }
    kill_descendants();
    Ok(exit_code(ended?))
}

/// Has the end of children and the wish to stop wait to be read.
fn hear_signals() -> io::Result<SignalFd> {
    let heard = SigSet::from_iter([SIGCHLD, SIGTERM]);
    heard.thread_block()?;
    Ok(SignalFd::with_flags(&heard, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// How a watch ends.
enum Ended {
    /// The server ended, for whatever reason.
    ByItself(ExitStatus),
    /// It was told to end, and did not.
    Overdue,
    /// The gateway is gone.
    GatewayGone,
}

/// Waits for the server's end, a reason to end it, or the gateway's end.
fn watch(server: Pid, signals: &SignalFd, gateway_end: &OwnedFd) -> io::Result<Ended> {
    let_go_of_the_pipes()?;
    let mut kill_at: Option<Instant> = None;
    loop {
        if let Some(signal) = signals.read_signal()?
            && signal.ssi_signo.cast_signed() == SIGTERM as i32
        {
            let _ = kill_process_group(server, Signal::TERM);
            // One that is stopped would not hear it.
            let _ = kill_process_group(server, Signal::CONT);
            kill_at.get_or_insert(Instant::now() + TERM_GRACE);
        }
        if let Some(status) = reap(server)? {
            return Ok(Ended::ByItself(status));
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

/// The pipes belong to the gateway and the server alone: only then does each see when the other lets go.
fn let_go_of_the_pipes() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Collects everything that has ended, orphans included; the server's status if it was among them.
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

/// Kills all that descends from here, whatever group or session it has moved to. Again and again, since
/// the killed may have been about to start others.
#[expect(clippy::disallowed_methods, reason = "there is no runtime whose worker would stand still")]
fn kill_descendants() {
    let give_up = Instant::now() + REAP_TIMEOUT;
    while has_descendants() && Instant::now() < give_up {
        for pid in proc_table::descendants_of(getpid()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(2));
    }
}

/// Whether anything is left below. Whose parent has ended is adopted, so it is enough to look for children; those that
/// have ended are collected.
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
        Ended::ByItself(status) => status,
        Ended::Overdue => return KILLED,
        Ended::GatewayGone => return 0,
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => 128 + u8::try_from(signal).unwrap_or(0),
        (None, None) => u8::MAX,
    }
}
