-- Read by SQLite and PostgreSQL alike: TEXT and BIGINT only. Times are milliseconds since 1970, by
-- the database's clock.

-- The tokens of tenants that have connected themselves to a server (OAuth), sealed: bound to
-- tenant, generation and server, by keys that are not here.
-- `id`: a connection; another one for each consent. `tenant_secrets` has a row for it, too, which
-- all gateways follow. `version` counts its tokens. `leased`: until then one gateway refreshes them.
-- `asked`: scopes that the server wants beside those that the tenant has agreed to.
-- `gone`: when a gateway first saw that no such server is configured.
CREATE TABLE oauth_connections (
    tenant TEXT NOT NULL,
    server TEXT NOT NULL,
    generation BIGINT NOT NULL,
    id TEXT NOT NULL,
    sealed TEXT NOT NULL,
    version BIGINT NOT NULL,
    leased BIGINT NOT NULL DEFAULT 0,
    asked TEXT NOT NULL DEFAULT '',
    connected BIGINT NOT NULL,
    gone BIGINT,
    PRIMARY KEY (tenant, server)
);

-- Tenants that are about to connect themselves. `state`: a hash of the text that goes through the
-- browser. A row is taken once.
CREATE TABLE oauth_states (
    state TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    server TEXT NOT NULL,
    sealed TEXT NOT NULL,
    expires BIGINT NOT NULL
);
CREATE INDEX oauth_states_tenant ON oauth_states (tenant, expires);

-- The gateway as a client that it has registered itself, sealed: bound to server and issuer.
CREATE TABLE oauth_clients (
    server TEXT NOT NULL,
    issuer TEXT NOT NULL,
    sealed TEXT NOT NULL,
    PRIMARY KEY (server, issuer)
);

-- Tokens that nobody may use any more, until the authorization server knows. `due` as in
-- `call_callbacks`.
CREATE TABLE oauth_revocations (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    server TEXT NOT NULL,
    sealed TEXT NOT NULL,
    due BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0
);
