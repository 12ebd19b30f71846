//! Notices that the file of a SQLite store was deleted or replaced.
//!
//! SQLite goes on with the file that it has open, wherever its path leads by then. A backup that is
//! moved into place would never be read, and every change would be lost with the old file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, mem};

use parking_lot::Mutex;

/// The suffixes of the files in which SQLite keeps changes that are not in the file yet.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// The file of an open store.
pub(super) struct DatabaseFile {
    path: PathBuf,
    id: FileId,
    /// Companion files of this file, as last seen.
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
    Replaced,
}

impl DatabaseFile {
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let id = id_of(&path)?;
        Ok(Self { path, id, companions: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Compares the opened file with the one that is at its path now.
    pub(super) fn state(&self) -> FileState {
        match id_of(&self.path) {
            Ok(id) if id == self.id => {
                *self.companions.lock() = self.companions().map(|path| id_of(&path).ok());
                FileState::Same
            }
            Ok(_) => FileState::Replaced,
            Err(_) => FileState::Gone,
        }
    }

    /// Removes what SQLite has left of this file, beside the one that has replaced it. SQLite would
    /// take it for the new file's, and mix both.
    pub(super) fn remove_companions(&self) -> io::Result<()> {
        let known = mem::take(&mut *self.companions.lock());
        for (path, known) in self.companions().into_iter().zip(known) {
            if known.is_some() && id_of(&path).ok() == known {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn companions(&self) -> [PathBuf; 2] {
        COMPANIONS.map(|suffix| {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            path.into()
        })
    }
}

fn id_of(path: &Path) -> io::Result<FileId> {
    let file = fs::metadata(path)?;
    Ok(FileId { device: file.dev(), inode: file.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_more_than_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["db", "db-wal", "db-shm", "backup"] {
            fs::write(path(name), name).unwrap();
        }
        let file = DatabaseFile::new(path("db")).unwrap();
        assert_eq!(file.state(), FileState::Same);
        fs::rename(path("db"), path("away")).unwrap();
        assert_eq!(file.state(), FileState::Gone);
        // It may come back with its changes.
        assert!(path("db-wal").exists());
        fs::rename(path("away"), path("db")).unwrap();
        assert_eq!(file.state(), FileState::Same);
        fs::rename(path("backup"), path("db")).unwrap();
        assert_eq!(file.state(), FileState::Replaced);
        // One that came with the backup stays.
        fs::write(path("new"), "new").unwrap();
        fs::rename(path("new"), path("db-wal")).unwrap();
        file.remove_companions().unwrap();
        assert!(path("db-wal").exists() && !path("db-shm").exists());
    }
}
