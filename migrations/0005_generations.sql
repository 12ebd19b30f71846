-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- Tells tenants apart that have one name, one after the other. NULL: a version that knows no
-- generations has added the tenant, and `created` stands for its generation.
ALTER TABLE tenants ADD COLUMN generation BIGINT;

-- Tenants of configuration files, as long as the files name them. `since` is 0 for those that were
-- there before this table.
CREATE TABLE file_tenants (
    name TEXT NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL,
    since BIGINT NOT NULL
);

-- 0 until a gateway has read the tenants of a file for the first time.
INSERT INTO revisions (name, value) VALUES ('file_tenants', 0);

-- Counters of one minute, like those of `usage`, which older versions read and write.
CREATE TABLE tenant_usage (
    minute BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    calls BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    tool_errors BIGINT NOT NULL,
    queue_us BIGINT NOT NULL,
    backend_us BIGINT NOT NULL,
    bytes_in BIGINT NOT NULL,
    bytes_out BIGINT NOT NULL,
    PRIMARY KEY (minute, tenant, generation, server, tool)
);
CREATE INDEX tenant_usage_tenant_minute ON tenant_usage (tenant, minute);
