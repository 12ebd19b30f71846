-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970.

-- Servers whose tools are pinned, since they were first seen: what they had then was approved.
CREATE TABLE pinned_servers (
    server TEXT NOT NULL PRIMARY KEY,
    first_use BIGINT NOT NULL
);

-- The definitions of tools that were approved. `gone`: since when the server has no tool of that name.
CREATE TABLE pins (
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    hash TEXT NOT NULL,
    definition TEXT NOT NULL,
    approved_at BIGINT NOT NULL,
    approved_by TEXT NOT NULL,
    gone BIGINT,
    PRIMARY KEY (server, tool)
);

-- The definitions that servers have now and that are not approved. Written by gateways, for those who approve them.
CREATE TABLE held_definitions (
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    hash TEXT NOT NULL,
    definition TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    PRIMARY KEY (server, tool, hash)
);
