//! Commands with one configuration use one store, wherever they run. No command makes one unasked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use trunkline::common::keys::ApiKey;
use trunkline::common::policy::Policy;
use trunkline::config::Secret;
use trunkline::store::Store;

use crate::secrets;
use crate::store::{root, tenant};
use crate::support::{Postgres, Serving, Setup, trunkline, trunkline_reading, trunkline_with};

const COMMANDS: [&str; 16] = [
    "tenant add new",
    "tenant list --json",
    "tenant show acme",
    "tenant set new --weight 2",
    "tenant remove new",
    "key create acme",
    "key create --admin",
    "key list acme",
    "key revoke 0123456789AB",
    "pin list",
    "pin diff own tool",
    "pin approve own --all",
    "pin forget own",
    "secret set acme own TOKEN",
    "secret list acme",
    "secret rotate",
];

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must fail, and returns its words.
async fn refused(setup: &Setup, command: &str, env: &[(&str, &str)]) -> String {
    let output = trunkline_with(setup, &words(command), env).await;
    let error = said(&output);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{command}: {error}");
    error
}

async fn succeeds(setup: &Setup, command: &str, env: &[(&str, &str)]) -> Output {
    let output = trunkline_with(setup, &words(command), env).await;
    assert_eq!(output.status.code(), Some(0), "{command}: {output:?}");
    output
}

/// Makes a store with the tenant `acme`.
async fn make_store(path: &Path) {
    let url = Secret::new(format!("sqlite://{}", path.display()));
    let store = Store::open(&url, None).await.unwrap();
    store.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
    store.close().await;
}

fn database(setup: &Setup) -> PathBuf {
    setup.dir.path().join("trunkline.db")
}

#[tokio::test]
async fn no_command_makes_a_store_unasked() {
    let setup = secrets::setup("");
    setup.write();
    let path = database(&setup);
    for command in COMMANDS {
        let error = refused(&setup, command, &[]).await;
        let expected = format!("error: the store does not exist yet: {}. ", path.display());
        assert!(error.starts_with(&expected), "{command}: {error}");
        assert!(error.contains("the gateway may use another one"), "{error}");
        assert!(error.contains("the option `--create`"), "{error}");
        assert!(!path.exists(), "{command} made a store");
    }
    // Neither an empty file nor another program's database is a store. Both stay as they are.
    let other = tempfile::tempdir().unwrap();
    let other = other.path().join("other.db");
    let options = SqliteConnectOptions::new().filename(&other).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE mine (x TEXT)").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    for content in [vec![], std::fs::read(&other).unwrap()] {
        std::fs::write(&path, &content).unwrap();
        let error = refused(&setup, "tenant add new", &[]).await;
        assert!(error.contains("the store does not exist yet"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn commands_that_may_be_the_first_make_a_store_when_asked() {
    for command in ["tenant add new --create", "key create acme --create", "key create --admin"] {
        let setup = secrets::setup("");
        setup.write();
        let args = command.replace("--admin", "--admin --create");
        succeeds(&setup, &args, &[]).await;
        assert!(database(&setup).exists(), "{command}");
        succeeds(&setup, &args.replace(" new ", " again "), &[]).await;
    }
    let setup = secrets::setup("");
    setup.write();
    let args = ["secret", "set", "acme", "own", "TOKEN", "--create"];
    assert!(trunkline_reading(&setup, &args, "x").await.status.success());
}

#[tokio::test]
async fn commands_say_once_which_store_they_use_and_not_on_standard_output() {
    let setup = secrets::setup("");
    setup.write();
    make_store(&database(&setup)).await;
    let line = format!("store: {}\n", database(&setup).display());
    for command in COMMANDS {
        let output = trunkline(&setup, &words(command)).await;
        assert_eq!(said(&output).matches(&line).count(), 1, "{command}: {output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(!printed.contains("store: "), "{command}: {printed}");
    }
    let output = succeeds(&setup, "key create --admin", &[]).await;
    let key = String::from_utf8(output.stdout).unwrap();
    assert!(ApiKey::parse(key.strip_suffix('\n').unwrap()).is_some(), "{key}");
}

#[tokio::test]
async fn a_new_postgresql_database_is_no_store_either_and_no_password_is_said() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database().await;
    let (_, name) = url.expose().rsplit_once('/').unwrap();
    let setup = Setup::new().with_store(&url);
    setup.write();
    let error = refused(&setup, "tenant list", &[]).await;
    assert!(error.contains("does not exist yet: PostgreSQL at 127.0.0.1:"), "{error}");
    assert!(error.contains(&format!(", database {name}. ")), "{error}");
    let created = said(&succeeds(&setup, "tenant add acme --create", &[]).await);
    assert!(created.starts_with("store: PostgreSQL at 127.0.0.1:"), "{created}");
    let listed = succeeds(&setup, "tenant list", &[]).await;
    assert!(String::from_utf8_lossy(&listed.stdout).contains("acme"), "{listed:?}");
    for text in [error, created, said(&listed)] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn the_store_is_beside_the_configuration_file_wherever_a_command_runs() {
    for (settings, file) in
        [("", "trunkline.db"), ("[store]\nurl = \"sqlite://data.db\"\n", "data.db")]
    {
        let (home, elsewhere) = (Setup::new(), Setup::new());
        let config = home.dir.path().join("trunkline.toml");
        std::fs::write(&config, settings).unwrap();
        let config = [("TRUNKLINE_CONFIG", config.to_str().unwrap())];
        succeeds(&elsewhere, "tenant add acme --create", &config).await;
        succeeds(&home, "tenant show acme", &[]).await;
        assert!(home.dir.path().join(file).exists());
        let left = std::fs::read_dir(elsewhere.dir.path()).unwrap().count();
        assert_eq!(left, 0, "the command has left something where it ran");
        // A variable is written where the command runs.
        let variable = [config[0], ("TRUNKLINE_STORE__URL", "sqlite://mine.db")];
        succeeds(&elsewhere, "tenant add other --create", &variable).await;
        assert!(elsewhere.dir.path().join("mine.db").exists());
    }
}

#[tokio::test]
async fn without_a_configuration_file_the_store_is_in_the_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let (here, elsewhere) = (Setup::new(), Setup::new());
    let env = [("XDG_STATE_HOME", ""), ("HOME", state.path().to_str().unwrap())];
    let dir = state.path().join(".local/state/trunkline");
    let error = refused(&here, "tenant list", &env).await;
    assert!(error.contains(dir.join("trunkline.db").to_str().unwrap()), "{error}");
    assert!(!dir.exists(), "a command that makes no store makes no directory");

    let gateway = Serving::start_in(here, &["--listen", "127.0.0.1:0"], &env).await;
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    succeeds(&elsewhere, "tenant add acme", &env).await;
    let listed = succeeds(gateway.setup(), "tenant list", &env).await;
    assert!(String::from_utf8_lossy(&listed.stdout).contains("acme"), "{listed:?}");
    let place = dir.join("trunkline.db").display().to_string();
    assert!(gateway.log().iter().any(|line| line.contains(&place)), "{:?}", gateway.log());
    assert_eq!(std::fs::read_dir(gateway.setup().dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn without_a_home_directory_the_store_must_be_named() {
    let setup = Setup::new();
    let env = [("XDG_STATE_HOME", ""), ("HOME", "")];
    for command in ["serve --listen 127.0.0.1:0", "tenant add acme --create", "tenant list"] {
        let error = refused(&setup, command, &env).await;
        assert!(error.contains("neither XDG_STATE_HOME nor HOME"), "{error}");
        assert!(error.contains("Set `[store] url` or TRUNKLINE_STORE__URL"), "{error}");
    }
    // Commands without a store need no home.
    succeeds(&setup, "check", &env).await;
    let named = [env[0], env[1], ("TRUNKLINE_STORE__URL", "sqlite://x.db")];
    succeeds(&setup, "tenant add acme --create", &named).await;
}

#[tokio::test]
async fn a_store_that_an_earlier_version_left_in_the_working_directory_is_not_passed_over() {
    let setup = Setup::new();
    let earlier = database(&setup);
    make_store(&earlier).await;
    let now = setup.dir.path().join("state/trunkline/trunkline.db");
    for command in ["serve --listen 127.0.0.1:0", "tenant list", "tenant add acme --create"] {
        let error = refused(&setup, command, &[]).await;
        let both = format!("{} does not exist, but {} does", now.display(), earlier.display());
        assert!(error.contains(&both), "{error}");
        assert!(error.contains("then move it there with its `-wal` and `-shm` files"), "{error}");
        assert!(error.contains(&format!(": sqlite://{}", earlier.display())), "{error}");
        assert!(!now.exists(), "{command} made a new store");
    }
    // Both ways that the error names lead on.
    let url = format!("sqlite://{}", earlier.display());
    succeeds(&setup, "tenant show acme", &[("TRUNKLINE_STORE__URL", &url)]).await;
    std::fs::rename(&earlier, &now).unwrap();
    succeeds(&setup, "tenant show acme", &[]).await;

    // Beside a file elsewhere that names no store, or a relative one.
    for settings in ["", "[store]\nurl = \"sqlite:trunkline.db\"\n"] {
        let (setup, far) = (Setup::new(), Setup::new());
        make_store(&database(&setup)).await;
        let config = far.dir.path().join("my.toml");
        std::fs::write(&config, settings).unwrap();
        let config = [("TRUNKLINE_CONFIG", config.to_str().unwrap())];
        let error = refused(&setup, "serve", &config).await;
        assert!(error.contains("which earlier versions used here"), "{error}");
        assert!(!database(&far).exists());
    }
}
