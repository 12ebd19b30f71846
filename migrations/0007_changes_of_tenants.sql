-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- The last changes of secrets: which revision changed the secrets of which tenant. A revision that
-- is missing here may have changed those of any.
CREATE TABLE secret_changes (
    revision BIGINT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL
);

-- Whose session has ended: name and generation. NULL: a version that does not note tenants has
-- written the row.
ALTER TABLE ended_sessions ADD COLUMN tenant TEXT;
