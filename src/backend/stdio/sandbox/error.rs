//! Why a process was not confined.

use std::io;
use std::path::PathBuf;

use super::ResourceLimit;

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
