-- What tenants have given to servers of their own, sealed: bound to tenant, server and name, by keys that are not here.
-- No reference: the tenant may stand in a configuration file. The version is that of the revision that has set it;
-- sealing it again with another key does not change it.
CREATE TABLE tenant_secrets (
    tenant TEXT NOT NULL,
    server TEXT NOT NULL,
    name TEXT NOT NULL,
    sealed TEXT NOT NULL,
    version BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    PRIMARY KEY (tenant, server, name)
);

-- Counts the changes of secrets.
INSERT INTO revisions (name, value) VALUES ('secrets', 0);
