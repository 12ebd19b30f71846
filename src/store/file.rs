//! Compares the file of a SQLite store with the one that is at its path.
//!
//! SQLite goes on with the file that it has open, wherever its path leads by then. A backup that is
//! moved into place would never be read, and every change would be lost with the old file.
//!
//! The last changes of a file may be in its log alone (`-wal`). So a log is never deleted here: the
//! log is renamed, and gets its name back with its file.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use parking_lot::Mutex;
use tokio::task::spawn_blocking;

/// The suffixes of the files in which SQLite keeps changes that are not in the file yet.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// The file of an open store.
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// The path without symbolic links. Companion files are beside it.
    target: PathBuf,
    id: FileId,
    /// Companion files of this file, as the last connection found them. They stay the same while
    /// any connection is open.
    companions: Mutex<[Option<FileId>; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileState {
    Same,
    Gone,
    Replaced(Seen),
}

/// A file that has replaced the opened one. Differs after every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    id: FileId,
    len: u64,
    changed: (i64, i64),
    /// Whether a log came with it.
    pub(super) has_log: bool,
}

impl DatabaseFile {
    pub(super) async fn find(path: PathBuf) -> io::Result<Self> {
        spawn_blocking(move || Self::new(path)).await?
    }

    fn new(path: PathBuf) -> io::Result<Self> {
        let (id, target) = (id_of(&path)?, fs::canonicalize(&path)?);
        Ok(Self { path, target, id, companions: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if another file is at the path.
    pub(super) async fn must_be_same(&self) -> io::Result<()> {
        let file = tokio::fs::metadata(&self.path).await?;
        if FileId::of(&file) == self.id {
            return Ok(());
        }
        Err(io::Error::other(format!("the file {} was replaced", self.path.display())))
    }

    /// Notes the companion files that a new connection uses.
    pub(super) async fn note_companions(&self) -> io::Result<()> {
        let paths = COMPANIONS.map(|suffix| with_suffix(&self.target, suffix));
        let found = spawn_blocking(move || paths.map(|path| id_of(&path).ok())).await?;
        self.must_be_same().await?;
        *self.companions.lock() = found;
        Ok(())
    }

    /// Compares the opened file with the one that is at its path now. A file that is back gets its
    /// companion files back. Blocks.
    pub(super) fn look(&self) -> io::Result<FileState> {
        let file = match fs::metadata(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileState::Gone),
            Err(error) => return Err(error),
        };
        let id = FileId::of(&file);
        if id == self.id {
            self.put_companions_back()?;
            return Ok(FileState::Same);
        }
        let log = id_of(&with_suffix(&fs::canonicalize(&self.path)?, COMPANIONS[0])).ok();
        let has_log = log.is_some() && log != self.companions.lock()[0];
        let changed = (file.ctime(), file.ctime_nsec());
        Ok(FileState::Replaced(Seen { id, len: file.len(), changed, has_log }))
    }

    /// Renames what SQLite has left of this file beside the one that has replaced it. SQLite would
    /// take it for the new file's, and mix both. Blocks; may be repeated.
    pub(super) fn set_companions_aside(&self) -> io::Result<()> {
        // A link that leads elsewhere has left the file and its companions where they were.
        if id_of(&self.target).ok() == Some(self.id) {
            return Ok(());
        }
        for (path, id) in self.known_companions() {
            if id_of(&path).ok() == Some(id) {
                let aside = aside(&path, id);
                fs::rename(&path, &aside)?;
                let (from, to) = (path.display(), aside.display());
                tracing::warn!(%from, %to, "renamed a log that belongs to the replaced file");
            }
        }
        Ok(())
    }

    fn put_companions_back(&self) -> io::Result<()> {
        for (path, id) in self.known_companions() {
            let aside_path = aside(&path, id);
            if id_of(&aside_path).ok() != Some(id) {
                continue;
            }
            if let Ok(other) = id_of(&path) {
                fs::rename(&path, aside(&path, other))?;
            }
            fs::rename(&aside_path, &path)?;
        }
        Ok(())
    }

    fn known_companions(&self) -> impl Iterator<Item = (PathBuf, FileId)> {
        let known = *self.companions.lock();
        let paths = COMPANIONS.map(|suffix| with_suffix(&self.target, suffix));
        paths.into_iter().zip(known).filter_map(|(path, id)| Some((path, id?)))
    }
}

impl FileId {
    fn of(file: &fs::Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino() }
    }
}

fn id_of(path: &Path) -> io::Result<FileId> {
    Ok(FileId::of(&fs::metadata(path)?))
}

/// Returns the name for a companion file that is not in use. No other file has its number, so
/// nothing is overwritten.
fn aside(path: &Path, id: FileId) -> PathBuf {
    with_suffix(path, &format!(".replaced-{}", id.inode))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path: OsString = path.into();
    path.push(suffix);
    path.into()
}

#[cfg(test)]
#[path = "tests/file.rs"]
mod tests;
