//! Landlock: restricts the files, ports and processes that a program can reach.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{ConfineError, Reach};

/// The newest interface that was tested. [`super::plan()`] decides what an older kernel may lack.
const TESTED: ABI = ABI::V7;

/// Does everything that can fail or takes memory, so that little is left for [`enforce`].
pub(super) fn prepare(
    reach: &Reach,
    directory: Option<&Path>,
    token_directory: Option<&Path>,
) -> Result<RulesetCreated, ConfineError> {
    // Newer kernels also block signals and abstract sockets to processes outside the sandbox.
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))
        .and_then(|rules| rules.scope(Scope::from_all(TESTED)))?;
    if reach.connect.is_some() {
        rules = rules.handle_access(AccessNet::ConnectTcp)?;
    }
    let mut rules = rules.create()?;
    for path in &reach.read {
        rules = rules.add_rule(beneath(path, "sandbox.read", AccessFs::from_read(TESTED))?)?;
    }
    for path in &reach.write {
        rules = rules.add_rule(beneath(path, "sandbox.write", AccessFs::from_all(TESTED))?)?;
    }
    if let Some(path) = directory {
        rules = rules.add_rule(beneath(path, "cwd", AccessFs::from_all(TESTED))?)?;
    }
    if let Some(path) = token_directory {
        rules = rules.add_rule(beneath(path, "oauth", AccessFs::from_read(TESTED))?)?;
    }
    for port in reach.connect.iter().flatten() {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    Ok(rules)
}

fn beneath(
    path: &Path,
    setting: &'static str,
    access: BitFlags<AccessFs>,
) -> Result<PathBeneath<PathFd>, ConfineError> {
    let open = PathFd::new(path);
    open.map(|path| PathBeneath::new(path, access)).map_err(|error| ConfineError::Path {
        setting,
        path: path.to_owned(),
        source: match error {
            PathFdError::OpenCall { source, .. } => source,
            other => std::io::Error::other(other),
        },
    })
}

/// Applies the rules to this thread and everything that it starts.
pub(super) fn enforce(rules: RulesetCreated) -> Result<(), ConfineError> {
    match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(ConfineError::NotEnforced),
    }
}

impl From<RulesetError> for ConfineError {
    fn from(error: RulesetError) -> Self {
        Self::Landlock(Box::new(error))
    }
}
