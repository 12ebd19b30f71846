//! The private directory of one instance.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::User;

/// A directory that is removed, with its contents, when this is dropped.
#[derive(Debug)]
pub struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Returns a path that nobody can guess.
    pub fn new_path() -> io::Result<PathBuf> {
        let parent = std::path::absolute(std::env::temp_dir())?;
        Ok(parent.join(format!("trunkline-{}", Uuid::new_v4())))
    }

    /// Creates the directory, accessible only to `owner` or, without one, to the current user.
    pub fn make(path: &Path, owner: Option<&User>) -> io::Result<Self> {
        // Fails if the name exists, so that nobody can have planted something there.
        DirBuilder::new().mode(0o700).create(path)?;
        let directory = Self(path.to_owned());
        if let Some(owner) = owner {
            chown(path, Some(owner.uid), Some(owner.gid))?;
        }
        Ok(directory)
    }

    /// Takes over a directory that there is.
    pub fn existing(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        if let Err(error) = removed.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }) {
            // Nobody may be left to read it, which is no reason to panic.
            let _ = writeln!(
                io::stderr(),
                "cannot remove the private directory {}: {error}",
                self.0.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_path_is_neither_used_nor_removed() {
        let there = tempfile::tempdir().unwrap();
        PrivateDirectory::make(there.path(), None).unwrap_err();
        assert!(there.path().exists());
        let link = there.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        PrivateDirectory::make(&link, None).unwrap_err();
    }
}
