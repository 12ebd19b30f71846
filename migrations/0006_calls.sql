-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- Calls that are kept: those with an idempotency key, and those answered asynchronously.
-- `state`: 0 accepted, 1 begun, 2 ended, 3 begun by a gateway that is gone.
-- `scope`: a hash of tenant, server, tool and key; NULL without a key, or once the key may be used again.
-- `owner`: the gateway that has the call; empty once it was handed over.
-- `request` and `head`: JSON, how the call was asked for and how it ended. `result`: the bytes of the answer; in `parts`
-- pieces in another table if they are many; NULL and no parts if they were evicted. A text that begins with `~` is sealed.
CREATE TABLE calls (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    scope TEXT,
    fingerprint TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    state BIGINT NOT NULL,
    owner TEXT NOT NULL,
    request TEXT NOT NULL,
    arguments TEXT,
    created BIGINT NOT NULL,
    begun BIGINT,
    ended BIGINT,
    expires BIGINT NOT NULL,
    head TEXT,
    result TEXT,
    result_len BIGINT NOT NULL DEFAULT 0,
    parts BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX calls_scope ON calls (scope);
CREATE INDEX calls_tenant ON calls (tenant, id);
CREATE INDEX calls_expires ON calls (expires);
-- Calls that have not ended.
CREATE INDEX calls_open ON calls (owner) WHERE state < 2;

-- The answers that are too long for their row.
CREATE TABLE call_results (
    call TEXT NOT NULL,
    part BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (call, part)
);

-- Labels by which a tenant finds its calls.
CREATE TABLE call_labels (
    tenant TEXT NOT NULL,
    label TEXT NOT NULL,
    call TEXT NOT NULL,
    PRIMARY KEY (tenant, label, call)
);
CREATE INDEX call_labels_call ON call_labels (call);

-- How much each tenant keeps: the sum over all shards. Gateways add to shards of their own, so that they seldom wait for
-- each other.
CREATE TABLE call_usage (
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    shard BIGINT NOT NULL,
    records BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant, generation, shard)
);
