use super::*;

#[test]
fn the_hint_is_for_files_that_cannot_be_written_not_for_busy_ones() {
    let said = |cause: &str| with_hint(StoreError::Unavailable(cause.to_owned())).to_string();
    assert!(said("attempt to write a readonly database").ends_with(URL_HINT));
    assert!(said("unable to open database file").ends_with(URL_HINT));
    assert!(said("database is locked").ends_with("locked"));
}

#[test]
fn a_file_is_named_by_its_full_path() {
    let dir = std::env::current_dir().unwrap();
    for (url, path) in [
        ("sqlite://trunkline.db", dir.join("trunkline.db")),
        ("sqlite:data/a:1.db", dir.join("data/a:1.db")),
        ("sqlite:///var/my%20data/x.db", "/var/my data/x.db".into()),
    ] {
        assert_eq!(file(url).unwrap().get_filename(), path, "{url}");
    }
    for url in ["sqlite:", "sqlite://", "sqlite::memory:", "sqlite://x.db?mode=ro"] {
        assert!(file(url).is_err(), "{url} was accepted");
    }
}

#[tokio::test]
async fn every_file_in_the_folder_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let found = Migrator::new(folder).await.unwrap();
    let fields = |migrator: &Migrator| -> Vec<_> {
        let all = migrator.iter().cloned();
        all.map(|it| (it.version, it.description, it.checksum, it.no_tx)).collect()
    };
    assert_eq!(fields(&migrator()), fields(&found));
}

/// A limit of pages stands for the full disk.
#[tokio::test]
async fn a_connection_that_was_full_is_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open_unread(&dir.path().join("x.db")).await;
    let write = DatabaseKind::Sqlite.begin_write();
    let mut transaction = opened.pool.begin_with(write).await.unwrap();
    transaction.execute("PRAGMA max_page_count = 1").await.unwrap();
    let fill = "INSERT INTO secrets (name, value) VALUES ('x', hex(zeroblob(100000)))";
    let error = transaction.execute(fill).await.unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    transaction.execute("PRAGMA max_page_count = 1000000").await.unwrap();
    // SQLite has ended the transaction; sqlx has not noticed.
    drop(transaction);
    while opened.pool.num_idle() < opened.pool.size() as usize {
        sleep(RETRY_DELAY).await;
    }
    let mut transaction = opened.pool.begin_with(write).await.unwrap();
    transaction.execute(fill).await.unwrap();
    transaction.commit().await.unwrap();
}

/// Opens a store with a given key, so that nothing is read yet: there is no connection.
async fn open_unread(path: &Path) -> Opened {
    let url = Secret::new(format!("sqlite://{}", path.display()));
    let key = Secret::new("k".repeat(32));
    Opened::open(&url, Some(&key), Missing::Create).await.unwrap()
}

#[tokio::test]
async fn a_new_connection_never_reads_another_file_with_the_log_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let [path, backup] = ["x.db", "backup.db"].map(|name| dir.path().join(name));
    let opened = open_unread(&path).await;
    let mut first = opened.pool.acquire().await.unwrap();
    let copy = format!("VACUUM INTO '{}'", backup.display());
    first.execute(sqlx::AssertSqlSafe(copy)).await.unwrap();
    first.execute("CREATE TABLE later (x TEXT)").await.unwrap();
    std::fs::rename(&backup, &path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let second = opened.pool.acquire().await;
    assert!(second.is_err(), "connected to the file that has replaced this one");
    assert!(std::fs::read(&path).unwrap() == before, "the file was changed");
    first.execute("SELECT * FROM later").await.unwrap();
}
