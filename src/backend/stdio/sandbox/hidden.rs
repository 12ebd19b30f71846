//! What keeps a process from being read by others of the same user.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// From now on no other process of the same user can read the memory and the environment of this one, in which keys and
/// secrets are, by `/proc` or as a debugger; root can. There are no core dumps either. It does not outlast an exec.
pub fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
