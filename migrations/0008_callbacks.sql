-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- Hosts that callbacks may go to: a JSON array of texts.
ALTER TABLE tenants ADD COLUMN callback_hosts TEXT;

-- One row for each call whose caller wants a callback.
-- `state`: 0 the call has not ended, 1 to be delivered, 2 delivered, 3 given up.
-- `about`: JSON, the call as its receiver is told of it. `head` and `ended`: how and when it ended, as in `calls`; no head
-- if nobody knows. A row to be delivered outlives the record of its call.
-- `due`: the time of the next attempt, by the database's clock; only in state 1. An attempt moves it ahead, so that another
-- gateway goes on if this one is killed.
CREATE TABLE call_callbacks (
    call TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    url TEXT NOT NULL,
    about TEXT NOT NULL,
    state BIGINT NOT NULL,
    head TEXT,
    ended BIGINT,
    due BIGINT,
    attempts BIGINT NOT NULL DEFAULT 0,
    problem TEXT
);
CREATE INDEX call_callbacks_due ON call_callbacks (tenant, due) WHERE state = 1;

-- The secrets that callbacks are signed with, sealed: bound to their tenant, by keys that are not here. Until `until`, the
-- previous one signs, too. They go with the tenant of their name.
CREATE TABLE callback_secrets (
    tenant TEXT NOT NULL PRIMARY KEY,
    sealed TEXT NOT NULL,
    previous TEXT,
    until BIGINT
);
