//! Confines a server's process. The gateway decides how; the process applies it to itself before it
//! becomes the program.
//!
//! - [`plan()`] turns a server's settings into a [`Profile`], or says what this [`Kernel`] lacks.
//! - The guard creates the [`PrivateDirectory`] and prepares the `Confinement`. The new process
//!   applies it; the guard itself stays unconfined, because it has to clean up.
//! - `landlock` restricts files and ports, `seccomp` system calls, [`user`] changes the
//!   user.
//! - `make_undumpable` protects the gateway and the guard themselves.

#[cfg(target_os = "linux")]
mod confinement;
mod directory;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod landlock;
mod plan;
#[cfg(target_os = "linux")]
mod seccomp;
mod user;

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub use self::confinement::{Confinement, close_inherited, make_undumpable};
pub use self::directory::PrivateDirectory;
#[cfg(target_os = "linux")]
pub use self::error::ConfineError;
pub use self::plan::{Kernel, Plan, PlanError, plan};
pub use self::user::User;

/// Exit code of a server that could not be confined. The reason is on its standard error. No
/// program is known to end with it; `docker run` ends with 125 to 127.
pub const CANNOT_CONFINE: u8 = 213;
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
    /// The directory of the file with the server's access token, to be read by the server. The
    /// gateway creates it; the guard removes it, since the gateway may have ended.
    #[serde(default)]
    pub token_directory: Option<PathBuf>,
    /// The user to become.
    pub user: Option<User>,
    pub limits: BTreeMap<ResourceLimit, u64>,
    /// The files and ports within reach; absent: all.
    pub reach: Option<Reach>,
    pub refuse: RefusedCalls,
}

/// The files and ports that a program can reach. It can reach no others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Paths to read and execute, with everything beneath them.
    pub read: Vec<PathBuf>,
    /// Paths to read, execute and change, with everything beneath them.
    pub write: Vec<PathBuf>,
    /// TCP ports to connect to; absent: any.
    pub connect: Option<Vec<u16>>,
}

/// The system calls that are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCalls {
    /// Refuses calls that no server needs.
    pub needless: bool,
    /// Refuses calls that bypass Landlock, which checks `connect` of plain TCP sockets only.
    pub other_ways_to_connect: bool,
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
