//! The version of this program, and the commit that it was built from.

/// The commit, or `unknown`: see `build.rs`.
pub const COMMIT: &str = env!("BUILD_COMMIT");
/// The version with the commit, if the build knew it.
pub const VERSION: &str = env!("BUILD_VERSION");
