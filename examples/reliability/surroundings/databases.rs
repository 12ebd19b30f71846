//! PostgreSQL that is there and refuses: no usage is lost.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::{Instant, sleep};

use crate::figure::Figure;
use crate::rows::{Shown, beside};
use crate::support::postgres::Postgres;
use crate::target::{Setup, Target};

/// A user without the rights of the one that made the database.
const USER: &str = "gateway";
const NEW_USER: &str = "CREATE ROLE gateway LOGIN PASSWORD 'hunter2'; \
    GRANT ALL ON SCHEMA public TO gateway";
const REFUSE: &str = "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM gateway";
const ALLOW: &str = "GRANT ALL ON ALL TABLES IN SCHEMA public TO gateway";
const TIME: Duration = Duration::from_secs(6);
const TIME_QUICK: Duration = Duration::from_secs(4);
/// Usage is written every two seconds.
const WRITTEN_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(500);

pub async fn show(quick: bool) -> Result<Shown> {
    let Some(postgres) = Postgres::start() else {
        return Ok(Shown::NotRun("PostgreSQL is not installed".to_owned()));
    };
    let url = postgres.database().await;
    let mut owner = PgConnection::connect(url.expose()).await?;
    owner.execute(AssertSqlSafe(NEW_USER)).await?;
    let tables = store(&url.expose().replace("trunkline:hunter2", &format!("{USER}:hunter2")));
    let target = Target::start(Setup { tables, with_key: true, ..Setup::default() }).await?;
    let mut round = beside(&target, async {
        owner.execute(REFUSE).await?;
        sleep(if quick { TIME_QUICK } else { TIME }).await;
        owner.execute(ALLOW).await?;
        Ok(vec![])
    })
    .await?;
    round.figures.extend(missing_usage(&target, round.answered()).await);
    target.stop().await;
    Ok(Shown::Round(round))
}

/// The table of a configuration that names the store.
pub fn store(url: &str) -> String {
    format!("[store]\nurl = {url:?}\n")
}

/// Returns how many of the neighbour's calls were answered, and how many of these are not in its
/// usage, when all should be.
pub async fn missing_usage(target: &Target, calls: usize) -> [Figure; 2] {
    let give_up = Instant::now() + WRITTEN_WITHIN;
    let mut missing = calls;
    while missing > 0 && Instant::now() < give_up {
        sleep(POLL).await;
        missing = calls.saturating_sub(usage(target).await.unwrap_or_default());
    }
    [
        Figure::new("answered calls", calls as f64, "", None),
        Figure::none("of these: not in `GET /v1/usage`", missing),
    ]
}

/// Returns the calls that the tenant's own report has.
async fn usage(target: &Target) -> Result<usize> {
    let (_, text) = target.get("/v1/usage", target.key.as_deref()).await?;
    let report: Value = serde_json::from_str(&text)?;
    let entries = report["usage"].as_array().context("this is no report")?;
    Ok(entries.iter().filter_map(|entry| entry["calls"].as_u64()).sum::<u64>() as usize)
}
