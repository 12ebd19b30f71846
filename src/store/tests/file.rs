use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// A directory with these files, each of which contains its name.
fn dir_with(names: &[&str]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in names {
        fs::write(dir.path().join(name), name).unwrap();
    }
    dir
}

async fn opened(path: PathBuf) -> DatabaseFile {
    let file = DatabaseFile::find(path).await.unwrap();
    file.note_companions().await.unwrap();
    file
}

fn is_replaced(file: &DatabaseFile) -> Seen {
    match file.look().unwrap() {
        FileState::Replaced(seen) => seen,
        state => panic!("{state:?}"),
    }
}

#[tokio::test]
async fn a_file_is_known_by_more_than_its_path() {
    let dir = dir_with(&["db", "db-wal", "db-shm", "backup"]);
    let path = |name: &str| dir.path().join(name);
    let file = opened(path("db")).await;
    assert_eq!(file.look().unwrap(), FileState::Same);
    fs::rename(path("db"), path("away")).unwrap();
    assert_eq!(file.look().unwrap(), FileState::Gone);
    assert!(file.must_be_same().await.is_err());
    // It may come back with its changes.
    assert!(path("db-wal").exists());
    fs::rename(path("away"), path("db")).unwrap();
    assert_eq!(file.look().unwrap(), FileState::Same);
    fs::rename(path("backup"), path("db")).unwrap();
    let seen = is_replaced(&file);
    assert!(!seen.has_log && seen == is_replaced(&file));
    // A write is seen.
    fs::write(path("db"), "longer than before").unwrap();
    assert_ne!(seen, is_replaced(&file));
    // One that came with the backup stays.
    fs::write(path("new"), "new").unwrap();
    fs::rename(path("new"), path("db-wal")).unwrap();
    assert!(is_replaced(&file).has_log);
    file.set_companions_aside().unwrap();
    assert!(path("db-wal").exists() && !path("db-shm").exists());
}

#[tokio::test]
async fn the_log_of_a_replaced_file_is_kept_and_comes_back_with_it() {
    let dir = dir_with(&["db", "db-wal", "db-shm", "backup"]);
    let path = |name: &str| dir.path().join(name);
    let file = opened(path("db")).await;
    let log = id_of(&path("db-wal")).unwrap();
    fs::rename(path("db"), path("old")).unwrap();
    fs::rename(path("backup"), path("db")).unwrap();
    // A name that is taken by a directory: the second rename fails, and is made up for later.
    let shm = aside(&path("db-shm"), id_of(&path("db-shm")).unwrap());
    fs::create_dir(&shm).unwrap();
    file.set_companions_aside().unwrap_err();
    fs::remove_dir(&shm).unwrap();
    file.set_companions_aside().unwrap();
    assert!(!path("db-wal").exists() && !path("db-shm").exists());
    assert_eq!(fs::read_to_string(aside(&path("db-wal"), log)).unwrap(), "db-wal");
    // The new file makes its own, then the old one is back.
    fs::write(path("db-wal"), "new").unwrap();
    let new = id_of(&path("db-wal")).unwrap();
    fs::rename(path("old"), path("db")).unwrap();
    assert_eq!(file.look().unwrap(), FileState::Same);
    assert_eq!(fs::read_to_string(path("db-wal")).unwrap(), "db-wal");
    assert_eq!(fs::read_to_string(path("db-shm")).unwrap(), "db-shm");
    assert_eq!(fs::read_to_string(aside(&path("db-wal"), new)).unwrap(), "new");
}

#[tokio::test]
async fn companions_are_beside_the_file_that_a_link_leads_to() {
    let dir = dir_with(&["db", "db-wal", "db-shm", "backup", "other"]);
    let path = |name: &str| dir.path().join(name);
    symlink(path("db"), path("link")).unwrap();
    let file = opened(path("link")).await;
    // Another target leaves the first one as it is.
    symlink(path("other"), path("link2")).unwrap();
    fs::rename(path("link2"), path("link")).unwrap();
    assert!(!is_replaced(&file).has_log);
    file.set_companions_aside().unwrap();
    assert!(path("db-wal").exists());
    fs::rename(path("backup"), path("db")).unwrap();
    file.set_companions_aside().unwrap();
    assert!(!path("db-wal").exists() && !path("db-shm").exists());
}
