//! Helpers that the integration tests have, too.

use std::time::Duration;

#[path = "../it/support/postgres.rs"]
#[allow(dead_code)]
mod postgres;
#[path = "../it/support/processes.rs"]
#[allow(dead_code)]
mod processes;
#[path = "../it/support/skip.rs"]
#[allow(dead_code)]
mod skip;

pub use self::postgres::Postgres;
pub use self::skip::missing;

/// Far longer than anything here takes, also on a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(60);
