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
    let url = Secret::new(format!("sqlite://{}", dir.path().join("x.db").display()));
    let opened = Opened::open(&url, None, Missing::Create).await.unwrap();
    let mut connection = opened.pool.acquire().await.unwrap();
    connection.execute("PRAGMA max_page_count = 1").await.unwrap();
    let write = DatabaseKind::Sqlite.begin_write();
    let mut transaction = connection.begin_with(write).await.unwrap();
    let fill = "INSERT INTO secrets (name, value) VALUES ('x', hex(zeroblob(100000)))";
    let error = transaction.execute(fill).await.unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    // SQLite has ended the transaction; sqlx has not noticed.
    drop(transaction);
    drop(connection);
    for _ in 0..2 {
        let mut transaction = opened.pool.begin_with(write).await.unwrap();
        transaction.execute(fill).await.unwrap();
        transaction.rollback().await.unwrap();
    }
}
