//! Confines a server's process. The gateway decides how; the process applies it to itself before it
//! becomes the program.
//!
//! - [`plan()`] turns a server's settings into a [`Profile`], or says what this [`Kernel`] lacks.
//! - The guard creates the [`PrivateDirectory`] and prepares the [`Confinement`]. The new process
//!   applies it; the guard itself stays unconfined, because it has to clean up.
//! - [`mod@landlock`] restricts files and ports, [`seccomp`] system calls, [`user`] changes the
//!   user.
//! - [`make_undumpable`] protects the gateway and the guard themselves.

mod confinement;
mod directory;
mod landlock;
mod plan;
mod seccomp;
mod user;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

pub use self::confinement::{Confinement, close_inherited, make_undumpable};
pub use self::directory::PrivateDirectory;
pub use self::landlock::Reach;
pub use self::plan::{Kernel, Plan, PlanError, plan};
pub use self::seccomp::RefusedCalls;
pub use self::user::User;

/// Exit code of a server that could not be confined. The reason is on its standard error.
pub const CANNOT_CONFINE: u8 = 125;
/// The signal by which a guard ends itself if it could not make the private directory. The reason
/// is on its standard error. Any exit code could be the program's own, but a signal that ends the
/// program is passed on as an exit code.
pub const NO_DIRECTORY: Signal = Signal::USR1;
/// Exit code of a server whose program could not be run, as shells have it.
pub const CANNOT_RUN: u8 = 126;

/// Restrictions that a server's process applies to itself. The guard gets them as an argument that
/// everybody on the machine can read, so they contain no secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The server's private directory. The guard creates and removes it.
    pub directory: Option<PathBuf>,
    /// The user to become.
    pub user: Option<User>,
    pub limits: BTreeMap<ResourceLimit, u64>,
    /// The files and ports within reach; absent: all.
    pub reach: Option<Reach>,
    pub refuse: RefusedCalls,
}

/// A resource limit, named as the setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceLimit {
    /// Open files.
    Files,
    /// Bytes of one file.
    FileSize,
    /// Bytes of address space.
    Memory,
    /// Processes of the user.
    Processes,
}

impl ResourceLimit {
    fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::FileSize => "file_size",
            Self::Memory => "memory",
            Self::Processes => "processes",
        }
    }
}

/// Says why a process did not become the server's program.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The gateway and the guard have different versions.
    #[error("the profile is not understood: {0}")]
    Profile(#[from] serde_json::Error),
    #[error("its guard is gone")]
    GuardGone,
    #[error(
        "its private directory cannot be made in {}: {source}; make room there, or set TMPDIR of \
         the gateway, or `cwd` of the server",
        parent.display()
    )]
    Directory { parent: PathBuf, source: io::Error },
    #[error("cannot close the descriptors it inherited: {0}")]
    Descriptors(io::Error),
    #[error("cannot set `limits.{} = {value}`: {source}; {permitted}", limit.name())]
    ResourceLimit {
        limit: ResourceLimit,
        value: u64,
        /// A clause that says which values this system allows.
        permitted: String,
        source: io::Error,
    },
    #[error(
        "cannot become the user `{name}`: {source}; the gateway must run as root to have servers \
         run by other users"
    )]
    User { name: String, source: io::Error },
    #[error("cannot set {what}: {source}")]
    Plain { what: &'static str, source: io::Error },
    #[error("cannot open {} of `{setting}`: {source}", path.display())]
    Path { setting: &'static str, path: PathBuf, source: io::Error },
    #[error("Landlock: {0}")]
    Landlock(Box<::landlock::RulesetError>),
    /// Landlock was available when the gateway made the plan.
    #[error("Landlock is not in force")]
    NotEnforced,
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
    #[error(
        "the sandbox does not let it read its own program `{}`: add the program and what it needs \
         to start (its interpreter, the dynamic loader, libraries; often \"/usr\", \"/lib\", \
         \"/lib64\") to `sandbox.read`",
        .0.display()
    )]
    OwnProgram(PathBuf),
    #[error("its guard failed: {0}")]
    Guard(#[from] io::Error),
    #[error("cannot run `{}`: {source}", program.display())]
    Run { program: PathBuf, source: io::Error },
}
