//! What a new process does to itself before it becomes a server's program.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use nix::sys::signal::SigSet;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};
use rustix::thread::{clear_ambient_capability_set, set_no_new_privs};
use seccompiler::BpfProgram;

use super::{CANNOT_CONFINE, ConfineError, Limit, Profile, landlock, seccomp};

/// A profile, ready to be applied to one process.
pub struct Confinement {
    profile: Profile,
    filters: Vec<BpfProgram>,
}

impl Confinement {
    /// Does what can be done before there is the process.
    pub fn prepare(profile: Profile) -> Result<Self, ConfineError> {
        let filters = seccomp::prepare(profile.refuse)?;
        Ok(Self { profile, filters })
    }

    /// Has the process that `command` starts confine itself before it becomes the program. If it cannot there is no
    /// program: the exit code is [`CANNOT_CONFINE`], and the reason on standard error.
    ///
    /// To be called by whoever starts it, while it has no other threads.
    #[expect(unsafe_code, reason = "nothing else runs in a new process before its program")]
    pub fn impose_on(self, command: &mut Command) {
        let guard = getpid();
        let confine = move || {
            self.apply(guard).or_else(|error| {
                // Whoever would read it may be gone.
                let _ = writeln!(io::stderr(), "{error}");
                exit(CANNOT_CONFINE.into())
            })
        };
        // SAFETY: what is unsafe in a new process is to need what another thread of the old one held when it was made,
        // such as a lock of the allocator. There was no other thread.
        unsafe { command.pre_exec(confine) };
    }

    /// From what needs rights to what takes them away.
    fn apply(&self, guard: Pid) -> Result<(), ConfineError> {
        // The guard holds some back, and so may have whoever started the gateway; that is inherited.
        SigSet::empty()
            .thread_set_mask()
            .map_err(|error| ConfineError::Plain { what: "the signals", source: error.into() })?;
        // Paths such as `.` and `/proc/self` mean the process's own. Opening them takes descriptors, which it may have few of
        // under its limits.
        let directory = self.profile.directory.as_deref();
        let reach = self.profile.reach.as_ref().map(|reach| landlock::prepare(reach, directory));
        let reach = reach.transpose()?;
        // Limits may need rights that another user does not have.
        set_limits(&self.profile)?;
        if let Some(user) = &self.profile.user {
            let name = user.name.clone();
            user.become_it().map_err(|source| ConfineError::User { name, source })?;
        }
        // Rights of a gateway that is not root, such as the one to change users, would be passed on to the program.
        clear_ambient_capability_set().map_err(|error| ConfineError::Plain {
            what: "the capabilities",
            source: error.into(),
        })?;
        // After the change of users, which would undo it.
        die_with(guard)?;
        set_no_new_privs(true)
            .map_err(|error| ConfineError::Plain { what: "no_new_privs", source: error.into() })?;
        if let Some(reach) = reach {
            landlock::enforce(reach)?;
        }
        seccomp::enforce(&self.filters)
    }
}

/// Closes everything but standard input, output and error. What is opened later than this is not passed on to a program.
pub fn close_inherited() -> io::Result<()> {
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
fn die_with(guard: Pid) -> Result<(), ConfineError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| ConfineError::Plain {
        what: "the signal at its guard's end",
        source: error.into(),
    })?;
    // Looked at afterwards: a guard that ended before is not the parent any more.
    if getppid() == Some(guard) { Ok(()) } else { Err(ConfineError::GuardGone) }
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
