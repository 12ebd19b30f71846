-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- Gateways that stand for one, and where the others reach them. `seen` is by the database's own clock.
CREATE TABLE replicas (
    id TEXT NOT NULL PRIMARY KEY,
    address TEXT NOT NULL,
    seen BIGINT NOT NULL
);

-- MCP sessions that ended before their tokens did. The revision is that of the change that has noted it: whoever follows reads
-- only what came after the last one.
CREATE TABLE ended_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    expires BIGINT NOT NULL,
    revision BIGINT NOT NULL
);
CREATE INDEX ended_sessions_revision ON ended_sessions (revision, id);
CREATE INDEX ended_sessions_expires ON ended_sessions (expires);

-- Counts the changes of ended sessions.
INSERT INTO revisions (name, value) VALUES ('sessions', 0);
