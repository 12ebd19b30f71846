//! Lists the migrations, which are part of the program.
//!
//! `sqlx::migrate!` would find the files by itself, but its crate compiles sqlx, SQLite and tokio
//! once more for the compiler. A test compares this list with the folder instead.

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Every file in `migrations/`: version, description as sqlx reads it from the file name, SQL.
const MIGRATIONS: [(i64, &str, &str); 4] = [
    (
        1,
        "tenants keys usage audit",
        include_str!("../../migrations/0001_tenants_keys_usage_audit.sql"),
    ),
    (2, "secrets", include_str!("../../migrations/0002_secrets.sql")),
    (3, "pins", include_str!("../../migrations/0003_pins.sql")),
    (4, "replicas", include_str!("../../migrations/0004_replicas.sql")),
];

pub(super) fn migrator() -> Migrator {
    let migrations = MIGRATIONS.map(|(version, description, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, description.into(), MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.into());
    // A newer version of the gateway may have used this database before.
    migrator.set_ignore_missing(true);
    migrator
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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
}
