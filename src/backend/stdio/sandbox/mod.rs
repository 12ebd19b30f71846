//! What a server's process may do and use: settled by the gateway, applied by the process itself before it becomes the program.
//!
//! - [`plan()`] turns a server's settings into a [`Profile`], or says what this [`Kernel`] cannot do
//! - the guard makes the [`PrivateDirectory`] and the [`Confinement`], which the process that it starts applies to itself.
//!   The guard must stay free: it has to clean up
//! - [`mod@landlock`] is what is within reach, [`seccomp`] which system calls are refused, [`user`] who runs it
//! - [`hide`] is for the gateway and the guard themselves

mod confinement;
mod directory;
mod hidden;
mod kernel;
mod landlock;
mod plan;
mod seccomp;
mod user;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::confinement::{Confinement, close_inherited};
pub use self::directory::PrivateDirectory;
pub use self::hidden::hide;
pub use self::kernel::Kernel;
pub use self::landlock::Reach;
pub use self::plan::{Plan, PlanError, plan};
pub use self::seccomp::Refuse;
pub use self::user::User;

/// The exit code of a server that could not be confined; the reason is on its standard error.
pub const CANNOT_CONFINE: u8 = 125;
/// The exit code of one whose program could not be run, as shells have it.
pub const CANNOT_RUN: u8 = 126;

/// What a server's process applies to itself. The guard gets it as an argument, for everybody on this machine to see: it has no
/// secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The server's private directory, if it has one. The guard makes it and removes it.
    pub directory: Option<PathBuf>,
    /// Who it becomes.
    pub user: Option<User>,
    /// What it may use.
    pub limits: BTreeMap<Limit, u64>,
    /// What it can reach, if not everything.
    pub reach: Option<Reach>,
    /// The system calls it cannot make.
    pub refuse: Refuse,
}

/// What can be limited, by the names of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Open files.
    Files,
    /// Bytes of a file.
    FileSize,
    /// Bytes of address space.
    Memory,
    /// Processes of the user.
    Processes,
}

impl Limit {
    /// The name of the setting.
    fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::FileSize => "file_size",
            Self::Memory => "memory",
            Self::Processes => "processes",
        }
    }
}

/// Why a process did not become the server's program.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The gateway and the guard are not of one version.
    #[error("the profile is not understood: {0}")]
    Profile(#[from] serde_json::Error),
    /// Whoever started it has ended.
    #[error("its guard is gone")]
    GuardGone,
    /// The private directory could not be made.
    #[error("cannot make its private directory {}: {source}", path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Descriptors that it inherited could not be closed.
    #[error("cannot close the descriptors it inherited: {0}")]
    Descriptors(io::Error),
    /// A limit above what is allowed here.
    #[error("cannot set `limits.{} = {value}`: {source}; {permitted}", limit.name())]
    Limit {
        /// Which.
        limit: Limit,
        /// As configured.
        value: u64,
        /// What would be allowed, in words.
        permitted: String,
        /// What the system said.
        source: io::Error,
    },
    /// It may not become somebody else.
    #[error(
        "cannot become the user `{name}`: {source}; the gateway must run as root to have servers run by other users"
    )]
    User {
        /// Whom.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// One of the plain restrictions that every kernel has.
    #[error("cannot set {what}: {source}")]
    Plain {
        /// Which.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A path that is not there.
    #[error("cannot open {} of `{setting}`: {source}", path.display())]
    Path {
        /// Where it is from.
        setting: &'static str,
        /// As configured.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Landlock failed.
    #[error("Landlock: {0}")]
    Landlock(Box<::landlock::RulesetError>),
    /// Landlock was there when the gateway looked, and is not.
    #[error("Landlock is not in force")]
    NotEnforced,
    /// Seccomp failed.
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
    /// The sandbox leaves out the program itself.
    #[error(
        "the sandbox does not let it read its own program `{}`: add the program and what it needs to start (its \
         interpreter, the dynamic loader, libraries; often \"/usr\", \"/lib\", \"/lib64\") to `sandbox.read`",
        .0.display()
    )]
    OwnProgram(PathBuf),
    /// The guard cannot do its own work.
    #[error("its guard failed: {0}")]
    Guard(#[from] io::Error),
    /// The program could not be run.
    #[error("cannot run `{}`: {source}", program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
