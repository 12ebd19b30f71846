//! A store that refuses instead of being away: full, without rights, or no longer the file that was
//! opened. Nothing is lost, nobody is trusted too long, and operators see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use trunkline::common::keys::ApiKey;
use trunkline::config::Secret;
use trunkline::store::{Actor, Store};

use crate::support::{Api, Gateway, Postgres, Setup, skipped, within};

/// The promised time until a change is followed, and as long as a busy machine may add.
const SOON: Duration = Duration::from_secs(30);
/// How long the store refuses: several writes of usage fail.
const FAULT: Duration = Duration::from_secs(6);
const UP: &str = "trunkline_store_up";
const BACKLOG: &str = "trunkline_unwritten_usage_rows";

/// A small file system of its own. Unmounted when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// Returns `None`, with a word, where mounting is not possible.
    fn mount() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
            .arg(dir.path())
            .output();
        if !mount.is_ok_and(|output| output.status.success()) {
            skipped("a small file system cannot be mounted");
            return None;
        }
        Some(Self(dir))
    }

    fn fill(&self) -> PathBuf {
        let filler = self.0.path().join("filler");
        fs::write(&filler, vec![0; 4 << 20]).unwrap_err();
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

async fn gateway_with(url: &Secret) -> Gateway {
    let setup = Setup::new().without_anonymous().std().with_tenant("acme", "servers = [\"std\"]");
    setup.with_store(url).start().await
}

fn sqlite(path: &Path) -> Secret {
    Secret::new(format!("sqlite://{}", path.display()))
}

/// Calls for as long as the store refuses. Returns how many calls were made.
async fn call_during_fault(caller: &Api) -> u64 {
    let over = Instant::now() + FAULT;
    let mut made = 0;
    while Instant::now() < over {
        let answer = caller.call("std", "uuid", "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        made += 1;
        sleep(Duration::from_millis(20)).await;
    }
    made
}

async fn calls(caller: &Api) -> u64 {
    let usage = caller.get("/v1/usage").await;
    let rows = usage.json()["usage"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["calls"].as_u64().unwrap()).sum()
}

async fn all_is_written(caller: &Api, made: u64) {
    within(SOON, "nothing is lost", async || (calls(caller).await == made).then_some(())).await;
}

async fn revoke(store: &Store, key: &str) {
    let id = ApiKey::parse(key).unwrap().id();
    store.revoke_key(&Actor::cli("test"), &id).await.unwrap();
}

/// Returns how many calls were accepted before.
async fn is_refused_soon(caller: &Api) -> u64 {
    let mut accepted = 0;
    within(SOON, "refused", async || {
        let status = caller.call("std", "uuid", "").await.status;
        accepted += u64::from(status == 200);
        (status == 401).then_some(())
    })
    .await;
    accepted
}

async fn value(gateway: &Gateway, metric: &str) -> Option<f64> {
    gateway.metrics().await.value(metric)
}

/// Waits until every use of the store works: each of them notices for itself.
async fn is_back(gateway: &Gateway) {
    let back = async || {
        let up = value(gateway, UP).await == Some(1.0);
        (up && gateway.readyz().await.text() == "ready\n").then_some(())
    };
    within(SOON, "back", back).await;
}

#[tokio::test]
async fn a_disk_that_was_full_leaves_no_broken_connection() {
    let Some(disk) = SmallDisk::mount() else { return };
    let url = sqlite(&disk.0.path().join("trunkline.db"));
    let gateway = gateway_with(&url).await;
    let key = gateway.new_key("acme").await;
    let (revoked, known) = (gateway.with_key(&key), gateway.as_tenant("acme").await);
    assert_eq!(revoked.call("std", "uuid", "").await.status, 200);
    let filler = disk.fill();
    let made = 1 + call_during_fault(&known).await;
    // Reads work, so keys are followed; the writes that fail are seen.
    let ready = gateway.readyz().await;
    fs::remove_file(filler).unwrap();
    let store = Store::open(&url, None).await.unwrap();
    revoke(&store, &key).await;
    let made = made + is_refused_soon(&revoked).await;
    all_is_written(&known, made).await;
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains("store: away for usage"), "{}", ready.text());
    is_back(&gateway).await;
    gateway.stop().await;
}

/// Returns a database that belongs to a role with no more rights than its own.
async fn database_of_plain_role(postgres: &Postgres) -> (Secret, PgConnection) {
    let admin = postgres.database().await;
    let mut connection = PgConnection::connect(admin.expose()).await.unwrap();
    let name = admin.expose().rsplit('/').next().unwrap().to_owned();
    let role =
        format!("CREATE ROLE plain LOGIN PASSWORD 'hunter2'; ALTER DATABASE {name} OWNER TO plain");
    connection.execute(AssertSqlSafe(role)).await.unwrap();
    (Secret::new(admin.expose().replace("trunkline:", "plain:")), connection)
}

#[tokio::test]
async fn rights_that_were_taken_lose_no_usage_and_are_seen() {
    let Some(postgres) = Postgres::start() else { return };
    let (url, mut admin) = database_of_plain_role(&postgres).await;
    let gateway = gateway_with(&url).await;
    let known = gateway.as_tenant("acme").await;
    admin.execute("REVOKE ALL ON tenant_usage, usage_batches FROM plain").await.unwrap();
    let made = call_during_fault(&known).await;
    let (ready, backlog) = (gateway.readyz().await, value(&gateway, BACKLOG).await);
    admin.execute("GRANT ALL ON tenant_usage, usage_batches TO plain").await.unwrap();
    all_is_written(&known, made).await;
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains("store: away for usage"), "{}", ready.text());
    assert!(backlog > Some(0.0), "{backlog:?}");
    is_back(&gateway).await;
    assert_eq!(value(&gateway, BACKLOG).await, Some(0.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_store_that_refuses_to_be_read_counts_as_away() {
    let Some(postgres) = Postgres::start() else { return };
    let (url, mut admin) = database_of_plain_role(&postgres).await;
    let gateway = gateway_with(&url).await;
    let known = gateway.as_tenant("acme").await;
    assert_eq!(known.call("std", "uuid", "").await.status, 200);
    admin.execute("REVOKE ALL ON revisions, keys FROM plain").await.unwrap();
    // Other uses of the store may fail first.
    let away = async || {
        let ready = gateway.readyz().await;
        ready.text().contains("away for tenants and keys").then_some(ready)
    };
    let ready = within(SOON, "away", away).await;
    assert_eq!(value(&gateway, UP).await, Some(0.0));
    assert_eq!((ready.status, known.call("std", "uuid", "").await.status), (200, 200));
    admin.execute("GRANT ALL ON revisions, keys TO plain").await.unwrap();
    is_back(&gateway).await;
    gateway.stop().await;
}

/// Copies the database to another file, as a backup does.
async fn back_up(url: &Secret, to: &Path) {
    let mut connection = AnyConnection::connect(url.expose()).await.unwrap();
    let copy = AssertSqlSafe(format!("VACUUM INTO '{}'", to.display()));
    connection.execute(copy).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_replaced_is_opened_anew() {
    let dir = TempDir::new().unwrap();
    let (path, backup) = (dir.path().join("trunkline.db"), dir.path().join("backup.db"));
    let url = sqlite(&path);
    let gateway = gateway_with(&url).await;
    let known = gateway.as_tenant("acme").await;
    back_up(&url, &backup).await;
    let newer = gateway.as_tenant("acme").await;
    assert_eq!(newer.call("std", "uuid", "").await.status, 200);
    all_is_written(&known, 1).await;
    fs::rename(&backup, &path).unwrap();
    // The backup knows nothing of the newer key, nor of its call.
    is_refused_soon(&newer).await;
    assert_eq!(known.call("std", "uuid", "").await.status, 200);
    within(SOON, "written", async || (calls(&known).await > 0).then_some(())).await;
    // The file at the path has it all, and is whole.
    let mut connection = AnyConnection::connect(url.expose()).await.unwrap();
    let check = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut connection);
    let check: String = check.await.unwrap();
    assert_eq!(check, "ok");
    let sum = sqlx::query_scalar("SELECT SUM(calls) FROM tenant_usage").fetch_one(&mut connection);
    let sum: i64 = sum.await.unwrap();
    assert_eq!(sum.unsigned_abs(), calls(&known).await);
    is_back(&gateway).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_file_that_is_deleted_is_missed_until_one_is_there_again() {
    let dir = TempDir::new().unwrap();
    let (path, backup) = (dir.path().join("trunkline.db"), dir.path().join("backup.db"));
    let url = sqlite(&path);
    let gateway = gateway_with(&url).await;
    let known = gateway.as_tenant("acme").await;
    assert_eq!(known.call("std", "uuid", "").await.status, 200);
    back_up(&url, &backup).await;
    fs::remove_file(&path).unwrap();
    within(SOON, "away", async || (value(&gateway, UP).await == Some(0.0)).then_some(())).await;
    // Never an empty one in its place: that would forget all tenants and keys.
    assert!(!path.exists());
    assert_eq!(known.call("std", "uuid", "").await.status, 200);
    fs::copy(&backup, &path).unwrap();
    is_back(&gateway).await;
    // The first call may have been written to the old file; the second cannot.
    within(SOON, "written", async || (calls(&known).await >= 1).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn only_operators_with_a_port_of_their_own_see_why_a_store_is_away() {
    for ops in ["", "ops_listen = \"127.0.0.1:0\""] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trunkline.db");
        let gateway = Setup::new().std().set(ops).with_store(&sqlite(&path)).start().await;
        fs::remove_file(&path).unwrap();
        let away = async || {
            let text = gateway.readyz().await.text();
            // Other uses of the store may fail first.
            let away = if ops.is_empty() { "away for tenants and keys\n" } else { "away" };
            text.contains(away).then_some(text)
        };
        let text = within(SOON, "away", away).await;
        assert!(!text.contains(".db") && !text.contains("file"), "{text}");
        let Some(operators) = gateway.ops_addr else {
            gateway.stop().await;
            continue;
        };
        let text = Api::new(operators, None).readyz().await.text();
        let cause = format!("the file {} is gone", path.display());
        assert!(text.contains("store: away for ") && text.contains(&cause), "{text}");
        gateway.stop().await;
    }
}
