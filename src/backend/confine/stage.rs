//! The last stage before a server's program: a process that confines itself and becomes the program.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::set_no_new_privs;

use super::{CANNOT_CONFINE, CANNOT_RUN, ConfineError, Limit, Profile, landlock, seccomp};

/// Becomes `program`, confined by `profile`. Comes back only if it could not. `guard` is the process that must have
/// started this one.
pub fn run(guard: u32, profile: &str, program: &str, args: &[String]) -> ExitCode {
    let Err(error) = become_program(guard, profile, program, args);
    eprintln!("{error}");
    ExitCode::from(match error {
        ConfineError::Run { .. } => CANNOT_RUN,
        _ => CANNOT_CONFINE,
    })
}

fn become_program(
    guard: u32,
    profile: &str,
    program: &str,
    args: &[String],
) -> Result<std::convert::Infallible, ConfineError> {
    // First of all, as long as everything that is open is inherited.
    close_inherited().map_err(ConfineError::Descriptors)?;
    let profile: Profile = serde_json::from_str(profile)?;
    // All that takes memory or descriptors comes before the limits.
    let mut command = Command::new(program);
    command.args(args);
    let directory = profile.directory.as_deref();
    let reach = profile.reach.as_ref().map(|reach| landlock::prepare(reach, directory));
    let reach = reach.transpose()?;
    let filters = seccomp::prepare(profile.refuse)?;

    // Limits may need rights that another user does not have.
    set_limits(&profile)?;
    if let Some(user) = &profile.user {
        let name = user.name.clone();
        user.become_it().map_err(|source| ConfineError::User { name, source })?;
    }
    // After the change of users, which would undo it.
    die_with(guard)?;
    set_no_new_privs(true)
        .map_err(|error| ConfineError::Plain { what: "no_new_privs", source: error.into() })?;
    let is_in_sandbox = reach.is_some();
    if let Some(reach) = reach {
        landlock::enforce(reach)?;
    }
    seccomp::enforce(&filters)?;

    let source = command.exec();
    Err(match source.kind() {
        io::ErrorKind::PermissionDenied if is_in_sandbox => {
            ConfineError::OwnProgram(program.to_owned())
        }
        _ => ConfineError::Run { program: program.to_owned(), source },
    })
}

/// Closes everything but standard input, output and error.
fn close_inherited() -> io::Result<()> {
    let open = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd: &RawFd| *fd > 2)
        .collect::<Vec<_>>();
    for fd in open {
        // That of the directory itself is closed already.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

/// Has the kernel kill this process when its guard ends, even if nobody is left to do so.
fn die_with(guard: u32) -> Result<(), ConfineError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| ConfineError::Plain {
        what: "the signal at its guard's end",
        source: error.into(),
    })?;
    // Looked at afterwards: a guard that ended before is not the parent any more.
    let parent = getppid().map(Pid::as_raw_pid);
    if parent == Some(guard.cast_signed()) { Ok(()) } else { Err(ConfineError::GuardGone) }
}

fn set_limits(profile: &Profile) -> Result<(), ConfineError> {
    set_limit(Resource::Core, 0)
        .map_err(|source| ConfineError::Plain { what: "the size of core dumps", source })?;
    for (limit, value) in &profile.limits {
        let (limit, value) = (*limit, *value);
        let resource = resource_of(limit);
        set_limit(resource, value).map_err(|source| ConfineError::Limit {
            limit,
            value,
            permitted: match getrlimit(resource).maximum {
                Some(maximum) => format!("what is permitted here ends at {maximum}"),
                None => "the system's own limit is lower".to_owned(),
            },
            source,
        })?;
    }
    Ok(())
}

fn set_limit(resource: Resource, value: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?)
}

fn resource_of(limit: Limit) -> Resource {
    match limit {
        Limit::Files => Resource::Nofile,
        Limit::FileSize => Resource::Fsize,
        Limit::Memory => Resource::As,
        Limit::Processes => Resource::Nproc,
    }
}
