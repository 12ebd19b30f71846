//! What the running kernel can do to confine a program.

use landlock::{LandlockStatus, RestrictSelf};
use seccompiler::TargetArch;

/// From this Landlock ABI on (Linux 6.2), files outside of `write` cannot be cut short either.
pub(super) const LANDLOCK_TRUNCATE: u32 = 3;
/// From this Landlock ABI on (Linux 6.7), TCP connections can be restricted.
pub(super) const LANDLOCK_TCP: u32 = 4;

/// A kernel, as far as confining goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its version, such as `6.12.5-amd64`.
    pub release: String,
    /// The version of Landlock's interface, if there is Landlock and it is turned on.
    pub landlock: Option<u32>,
    /// Whether it filters system calls, of programs for this processor.
    pub seccomp: bool,
}

impl Kernel {
    /// The one that runs.
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
    // Nothing is asked of it, so this restricts nothing: it only tells what there is.
    let status = RestrictSelf::default().no_new_privs(false).apply().ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as u32),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    }
}
