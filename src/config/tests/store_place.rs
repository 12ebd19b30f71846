use super::*;

fn url(config: &Config) -> &str {
    config.store.url.expose()
}

/// Returns the URL of a file below a directory.
fn at(dir: &Path, file: &str) -> String {
    format!("sqlite://{}/{file}", dir.display())
}

#[test]
fn the_default_file_is_beside_the_configuration_file_wherever_a_command_runs() {
    let mut setup = Setup::toml("");
    let expected = at(setup.dir.path(), "trunkline.db");
    assert_eq!(url(&setup.load()), expected);
    assert_eq!(setup.load().store.earlier_url, None);
    setup.sources.file = Some(setup.dir.path().join("trunkline.toml"));
    let elsewhere = tempfile::tempdir().unwrap();
    setup.sources.working_dir = elsewhere.path().to_owned();
    let store = setup.load().store;
    assert_eq!(store.url.expose(), expected);
    assert_eq!(store.earlier_url.unwrap().expose(), at(elsewhere.path(), "trunkline.db"));
    assert_eq!(store.state_dir, None);
}

#[test]
fn without_a_configuration_file_the_default_file_is_in_the_users_state_directory() {
    for (variables, dir) in [
        (&[("HOME", "/home/me")][..], "/home/me/.local/state/trunkline"),
        (&[("HOME", "/home/me"), ("XDG_STATE_HOME", "/state")], "/state/trunkline"),
        (&[("HOME", "/home/me"), ("XDG_STATE_HOME", "")], "/home/me/.local/state/trunkline"),
        (&[("HOME", "/home/me"), ("XDG_STATE_HOME", "x")], "/home/me/.local/state/trunkline"),
    ] {
        let variables = variables.iter();
        let setup = variables.fold(Setup::empty(), |setup, (name, value)| setup.var(name, value));
        let store = setup.load().store;
        assert_eq!(store.url.expose(), at(Path::new(dir), "trunkline.db"));
        assert_eq!(store.earlier_url.unwrap().expose(), at(setup.dir.path(), "trunkline.db"));
        assert_eq!(store.state_dir, Some(StateDir::At(dir.into())));
    }
    let store = Setup::empty().var("HOME", "").load().store;
    assert_eq!(store.state_dir, Some(StateDir::Unknown));
}

#[test]
fn a_relative_path_starts_at_the_directory_of_its_file() {
    for (written, file) in [
        ("sqlite://data/x.db", "data/x.db"),
        ("sqlite:x.db", "x.db"),
        ("sqlite://../a%20b.db", "../a%20b.db"),
        ("${NAME}", "named.db"),
    ] {
        let mut setup = Setup::empty().var("NAME", "sqlite://named.db");
        let conf = setup.dir.path().join("conf dir");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("my.toml"), format!("[store]\nurl = {written:?}\n")).unwrap();
        setup.sources.file = Some("conf dir/my.toml".into());
        let store = setup.load().store;
        let expected = at(&setup.dir.path().join("conf%20dir"), file);
        assert_eq!(store.url.expose(), expected, "{written}");
        assert_eq!(store.earlier_url.unwrap().expose(), at(setup.dir.path(), file));
    }
}

#[test]
fn a_relative_path_in_a_variable_starts_at_the_working_directory() {
    for (name, value) in [
        ("TRUNKLINE_STORE__URL", "sqlite://x.db"),
        ("TRUNKLINE_STORE", "{ url = \"sqlite://x.db\" }"),
    ] {
        let mut setup = Setup::toml("[store]\nurl = \"sqlite://y.db\"\n").var(name, value);
        setup.sources.file = Some(setup.dir.path().join("trunkline.toml"));
        setup.sources.working_dir = "/elsewhere".into();
        let store = setup.load().store;
        assert_eq!(store.url.expose(), "sqlite:///elsewhere/x.db", "{name}");
        assert_eq!(store.earlier_url, None);
    }
}

#[test]
fn other_urls_stay_as_they_are() {
    for written in
        ["sqlite:///var/x.db", "sqlite:/x.db", "postgres://db/x", "sqlite::memory:", "sqlite:"]
    {
        let store = Setup::toml(&format!("[store]\nurl = {written:?}\n")).load().store;
        assert_eq!(store.url.expose(), written);
        assert_eq!((store.earlier_url, store.state_dir), (None, None));
    }
    let root = Setup::toml("").var("TRUNKLINE_STORE__URL", "sqlite://x.db");
    let sources = Sources { working_dir: "/".into(), file: None, ..root.sources };
    assert_eq!(url(&load(&sources).unwrap()), "sqlite:///x.db");
}
