//! Confines a new process before it becomes a server's program.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use nix::sys::signal::SigSet;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{clear_ambient_capability_set, set_no_new_privs};
use seccompiler::BpfProgram;

use super::{CANNOT_CONFINE, ConfineError, Profile, ResourceLimit, landlock, seccomp};

/// A profile, ready to be applied to one process.
pub struct Confinement {
    profile: Profile,
    filters: Vec<BpfProgram>,
}

impl Confinement {
    /// Does everything that can be done before the process exists.
    pub fn prepare(profile: Profile) -> Result<Self, ConfineError> {
        let filters = seccomp::prepare(profile.refuse)?;
        Ok(Self { profile, filters })
    }

    /// Makes the process that `command` starts confine itself before it becomes the program. If
    /// that fails the program does not run: the exit code is [`CANNOT_CONFINE`], and the reason is
    /// on standard error.
    ///
    /// The calling process must have one thread only.
    #[expect(unsafe_code, reason = "nothing else runs in a new process before its program")]
    pub fn impose_on(self, command: &mut Command) {
        let guard = getpid();
        let confine = move || {
            self.apply(guard).or_else(|error| {
                // Nobody may be left to read it.
                let _ = writeln!(io::stderr(), "{error}");
                exit(CANNOT_CONFINE.into())
            })
        };
        // SAFETY: after a fork the child must not need a lock that another thread of the parent
        // held, such as the allocator's. The parent has no other thread.
        unsafe { command.pre_exec(confine) };
    }

    /// Runs the steps that need privileges before those that take privileges away.
    fn apply(&self, guard: Pid) -> Result<(), ConfineError> {
        // The guard blocks some signals, and the gateway's parent may have; both are inherited.
        SigSet::empty().thread_set_mask().map_err(plain("the signals"))?;
        // Prepared in this process, to which paths such as `.` and `/proc/self` refer, and before
        // the limits, because opening the paths takes descriptors.
        let Profile { directory, token_directory, .. } = &self.profile;
        let prepare =
            |reach| landlock::prepare(reach, directory.as_deref(), token_directory.as_deref());
        let reach = self.profile.reach.as_ref().map(prepare);
        let reach = reach.transpose()?;
        // Limits may need rights that another user does not have.
        set_limits(&self.profile)?;
        if let Some(user) = &self.profile.user {
            let name = user.name.clone();
            user.switch_to().map_err(|source| ConfineError::User { name, source })?;
        }
        // The program would inherit capabilities of a gateway that is not root.
        clear_ambient_capability_set().map_err(plain("the capabilities"))?;
        // A change of user resets the death signal, so it comes after.
        die_with(guard)?;
        set_no_new_privs(true).map_err(plain("no_new_privs"))?;
        if let Some(reach) = reach {
            landlock::enforce(reach)?;
        }
        Ok(seccomp::enforce(&self.filters)?)
    }
}

fn plain<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ConfineError {
    move |error| ConfineError::Plain { what, source: error.into() }
}

/// Denies other processes of the same user access to the memory and environment of this one, which
/// hold keys and secrets. Root still has access. Also turns off core dumps. An exec undoes it.
pub fn make_undumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Closes everything but standard input, output and error. Descriptors opened later are closed on
/// exec.
pub fn close_inherited() -> io::Result<()> {
    let open = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd: &RawFd| *fd > 2)
        .collect::<Vec<_>>();
    for fd in open {
        // The descriptor of the directory itself is closed already.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

/// Makes the kernel kill this process when its guard ends.
fn die_with(guard: Pid) -> Result<(), ConfineError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(plain("the signal at its guard's end"))?;
    // Checked afterwards: a guard that ended before is not the parent any more.
    if getppid() == Some(guard) { Ok(()) } else { Err(ConfineError::GuardGone) }
}

fn set_limits(profile: &Profile) -> Result<(), ConfineError> {
    set_limit(Resource::Core, 0).map_err(plain("the size of core dumps"))?;
    for (&limit, &value) in &profile.limits {
        let resource = resource_of(limit);
        set_limit(resource, value).map_err(|source| ConfineError::ResourceLimit {
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

fn resource_of(limit: ResourceLimit) -> Resource {
    match limit {
        ResourceLimit::Files => Resource::Nofile,
        ResourceLimit::FileSize => Resource::Fsize,
        ResourceLimit::Memory => Resource::As,
        ResourceLimit::Processes => Resource::Nproc,
    }
}
