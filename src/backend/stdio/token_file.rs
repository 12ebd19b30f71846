//! The file in which a program finds its access token: in a directory of its own, replaced whole
//! before the token ends, gone with the program.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, sleep_until};
use uuid::Uuid;

use super::sandbox::{PrivateDirectory, User};
use crate::backend::http::oauth::{Token, TokenSource};
use crate::common::secret::Secret;

const NAME: &str = "token";
/// How often to look for a token that is due, or to write one that could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// A program's token, and where it goes.
pub(crate) struct ProgramToken {
    /// The variable that gets the path.
    pub(crate) variable: String,
    pub(crate) source: Arc<TokenSource>,
    pub(crate) token: Arc<Token>,
}

/// The file, removed with its directory when this is dropped.
#[derive(Debug)]
pub(super) struct TokenFile {
    directory: PathBuf,
    /// The user who reads it, if that is not the gateway's.
    owner: Option<User>,
}

impl TokenFile {
    /// Makes the directory and the file.
    pub(super) fn make(token: &Secret, owner: Option<&User>) -> io::Result<Self> {
        let directory = PrivateDirectory::new_path()?;
        // Stays the gateway's, whoever reads the file: its owner could make it lead elsewhere. That
        // one may go through it, and see nothing of it.
        let mode = if owner.is_some() { 0o711 } else { 0o700 };
        // Fails if the name exists, so that nobody can have planted something there.
        DirBuilder::new().mode(mode).create(&directory)?;
        let file = Self { directory, owner: owner.cloned() };
        file.write(token)?;
        Ok(file)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// Replaces the token: a reader finds the old one or the new one, whole.
    fn write(&self, token: &Secret) -> io::Result<()> {
        let path = self.directory.join(format!("{NAME}-{}", Uuid::new_v4()));
        let written = self.write_to(&path, token).and_then(|()| fs::rename(&path, self.path()));
        if written.is_err() {
            let _ = fs::remove_file(&path);
        }
        written
    }

    fn write_to(&self, path: &Path, token: &Secret) -> io::Result<()> {
        let mut file: File =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        if let Some(owner) = &self.owner {
            fchown(&file, Some(owner.uid), Some(owner.gid))?;
        }
        file.write_all(token.expose().as_bytes())
    }

    /// Replaces the token in time, for ever.
    pub(super) async fn keep(self: Arc<Self>, program: ProgramToken) {
        let ProgramToken { source, mut token, .. } = program;
        loop {
            let Some(due) = token.due else { return std::future::pending().await };
            sleep_until(due).await;
            let next = loop {
                match source.token().await {
                    Ok(next) if !Arc::ptr_eq(&next, &token) => break next,
                    // The next one is on its way. The source tells of failures.
                    Ok(_) | Err(_) => sleep(RETRY).await,
                }
            };
            let mut is_told = false;
            while let Err(error) = self.replace(&next).await {
                if !std::mem::replace(&mut is_told, true) {
                    let directory = self.directory.display();
                    tracing::warn!(%error, "a token cannot be written to {directory}: {error}");
                }
                sleep(RETRY).await;
            }
            token = next;
        }
    }

    async fn replace(self: &Arc<Self>, token: &Arc<Token>) -> io::Result<()> {
        let (file, token) = (self.clone(), token.clone());
        let written = spawn_blocking(move || file.write(&token.secret)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // The guard may have removed it.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_its_user_reads_the_file_and_nothing_is_left_of_it() {
        let secret = |text: &str| Secret::new(text.to_owned());
        let file = TokenFile::make(&secret("one"), None).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.directory()), mode(&file.path())), (0o700, 0o600));
        let before = File::open(file.path()).unwrap();
        file.write(&secret("another")).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "another");
        // Whoever has opened the old one reads that, whole.
        assert_eq!(io::read_to_string(before).unwrap(), "one");
        assert_eq!(mode(&file.path()), 0o600);
        assert_eq!(fs::read_dir(file.directory()).unwrap().count(), 1);
        let directory = file.directory().to_owned();
        drop(file);
        assert!(!directory.exists());
    }
}
