//! Finds out which restrictions the running kernel supports.

use landlock::{LandlockStatus, RestrictSelf};
use seccompiler::TargetArch;

/// The first Landlock ABI (Linux 6.2) that prevents truncating files outside `write`.
pub(super) const LANDLOCK_TRUNCATE: u32 = 3;
/// The first Landlock ABI (Linux 6.7) that restricts TCP connections.
pub(super) const LANDLOCK_TCP: u32 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The version, such as `6.12.5-amd64`.
    pub release: String,
    /// The ABI version of Landlock, if Landlock is available and turned on.
    pub landlock: Option<u32>,
    /// Whether system calls can be filtered on this processor.
    pub seccomp: bool,
}

impl Kernel {
    pub fn current() -> Self {
        let system = rustix::system::uname();
        Self {
            release: system.release().to_string_lossy().into_owned(),
            landlock: landlock_abi(),
            seccomp: rustix::thread::secure_computing_mode().is_ok()
                && TargetArch::try_from(std::env::consts::ARCH).is_ok(),
        }
    }
}

fn landlock_abi() -> Option<u32> {
    // An empty request restricts nothing: it only reports the status.
    let status = RestrictSelf::default().no_new_privs(false).apply().ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as u32),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    }
}
