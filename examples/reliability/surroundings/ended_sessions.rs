//! A start with many ended sessions in the store, whose tokens have not expired.

use anyhow::Result;
use sqlx::{Connection, Executor, SqliteConnection};
use tokio::time::Instant;
use trunkline::config::Secret;
use trunkline::store::Store;

use super::databases::store;
use crate::figure::Figure;
use crate::process::free_address;
use crate::rows::{Round, Shown};
use crate::target::{Setup, Target};
use crate::watch::resident;

const SESSIONS: u32 = 10_000_000;
const SESSIONS_QUICK: u32 = 500_000;
/// Quick to write, and nothing that must outlast this program.
const FAST: &str = "PRAGMA synchronous = OFF; PRAGMA cache_size = -400000";
/// Tokens expire in a day. A change has ended a hundred of them. Both halves of each id are
/// its own.
const FILL: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) \
    INSERT INTO ended_sessions (id, expires, revision) \
    SELECT printf('%08x-0000-4000-8000-%012x', i, random() & 281474976710655), \
        CAST(strftime('%s') AS INTEGER) * 1000 + 86400000, i / 100 FROM n";
const COUNT: &str = "UPDATE revisions SET value = $1 / 100 WHERE name = 'sessions'";
const READY_S_MAX: f64 = 2.0;
const MEMORY_MIB_MAX: f64 = 128.0;

pub async fn show(quick: bool) -> Result<Shown> {
    let dir = tempfile::tempdir()?;
    let url = format!("sqlite://{}", dir.path().join("trunkline.db").display());
    let sessions = if quick { SESSIONS_QUICK } else { SESSIONS };
    fill(&url, sessions).await?;
    let tables = format!("{}[replicas]\nlisten = \"{}\"\n", store(&url), free_address().await?);
    let settings = "session_keys = [\"one key that all replicas of this gateway have\"]";
    let setup = Setup { tables, settings, ..Setup::default() };
    let began = Instant::now();
    let (ready, memory) = match Target::start(setup).await {
        Ok(target) => {
            let ready = began.elapsed().as_secs_f64();
            let memory = resident(target.pid()?)? as f64 / f64::from(1 << 20);
            target.stop().await;
            (ready, memory)
        }
        Err(error) => {
            eprintln!("{error:#}");
            (f64::INFINITY, f64::INFINITY)
        }
    };
    let figures = vec![
        Figure::new("ended sessions", f64::from(sessions), "", None),
        Figure::new("from the start of the process to ready", ready, "s", READY_S_MAX),
        Figure::new("memory when ready", memory, "MiB", MEMORY_MIB_MAX),
    ];
    Ok(Shown::Round(Round { figures, meanwhile: None }))
}

/// Makes a store with so many ended sessions.
async fn fill(url: &str, sessions: u32) -> Result<()> {
    drop(Store::open(&Secret::new(url.to_owned()), None).await?);
    let mut connection = SqliteConnection::connect(url).await?;
    connection.execute(FAST).await?;
    sqlx::query(FILL).bind(sessions).execute(&mut connection).await?;
    sqlx::query(COUNT).bind(sessions).execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}
