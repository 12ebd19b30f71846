-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- Tenants that do not stand in a configuration file. What is NULL is not limited.
CREATE TABLE tenants (
    id TEXT NOT NULL PRIMARY KEY,
    rate TEXT,
    burst BIGINT,
    max_in_flight BIGINT,
    weight BIGINT NOT NULL,
    created BIGINT NOT NULL,
    changed BIGINT NOT NULL
);

-- What a tenant may use, in the order in which it was said.
CREATE TABLE grants (
    tenant TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    pattern TEXT NOT NULL,
    PRIMARY KEY (tenant, position)
);

-- Further limits for calls that a pattern covers.
CREATE TABLE limits (
    tenant TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
    pattern TEXT NOT NULL,
    rate TEXT,
    burst BIGINT,
    max_in_flight BIGINT,
    PRIMARY KEY (tenant, pattern)
);

-- Without a tenant: an administrator's. No reference: the tenant may stand in a configuration file.
CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT,
    hash TEXT NOT NULL,
    name TEXT,
    created BIGINT NOT NULL,
    expires BIGINT,
    revoked BIGINT,
    last_used BIGINT
);
CREATE INDEX keys_tenant ON keys (tenant);

-- Counters of one minute, which is named by its beginning.
CREATE TABLE usage (
    minute BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    calls BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    tool_errors BIGINT NOT NULL,
    queue_us BIGINT NOT NULL,
    backend_us BIGINT NOT NULL,
    bytes_in BIGINT NOT NULL,
    bytes_out BIGINT NOT NULL,
    PRIMARY KEY (minute, tenant, server, tool)
);
CREATE INDEX usage_tenant_minute ON usage (tenant, minute);

-- What has been added to `usage` already, so that nothing is added twice.
CREATE TABLE usage_batches (
    replica TEXT NOT NULL,
    batch BIGINT NOT NULL,
    added BIGINT NOT NULL,
    PRIMARY KEY (replica, batch)
);
CREATE INDEX usage_batches_added ON usage_batches (added);

-- Who changed what. Ids sort by time; the detail is JSON.
CREATE TABLE audit (
    id TEXT NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at);

-- What the store has made for itself, such as the key that keys are hashed with.
CREATE TABLE secrets (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

-- Counts the changes of tenants and keys. Whoever changes one of them increases it first, and so waits for whoever
-- does the same.
CREATE TABLE revisions (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO revisions (name, value) VALUES ('policy', 0);
