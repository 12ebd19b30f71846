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
