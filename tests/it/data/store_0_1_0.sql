-- The store of 2026-11-19: a tenant, its key, a secret, approved tools, a kept call, usage.
BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO "_sqlx_migrations" VALUES(1,'tenants keys usage audit','2026-11-19 18:26:36',1,X'9E0BD28A438C1F2F160CDEAE742E587D795834C0A59962BC4052FB3E6EDAB9824A3082A10781C9FDD87A48EDB8A7AEC5',598413);
INSERT INTO "_sqlx_migrations" VALUES(2,'secrets','2026-11-19 18:26:36',1,X'D2279CC21489C14FE83045B5434D85FCCE289A04CF12E29091EF059AB45EB46C5C5574F3BC79002FC79656EE104D1F87',2797956);
INSERT INTO "_sqlx_migrations" VALUES(3,'pins','2026-11-19 18:26:36',1,X'C46ECA2A3D8715FD83BD955DA5167D0EEB7BEAF3580F9B6DEAB07D473956DB19B93ACF5E7F34A4BADEC0473AAFA2CD4A',204946);
INSERT INTO "_sqlx_migrations" VALUES(4,'replicas','2026-11-19 18:26:36',1,X'D0FA5234C5AFEE5A8037E312BF713F3DA2FC2F2B0968BDD39A159B396BDE7E2EC14FBE11DF80854C7D1724534064D9D7',221961);
INSERT INTO "_sqlx_migrations" VALUES(5,'generations','2026-11-19 18:26:36',1,X'8EE891B302586511A25F3C7A06B487263B22614AAC16D4338AE03A4AD07B2FD6D6A650D9CF63B4629347D85947E463ED',355911);
INSERT INTO "_sqlx_migrations" VALUES(6,'calls','2026-11-19 18:26:36',1,X'52FCCBE4E0C675290BBFC08C095593E9BC4D8F7625E204A3EF4AF89A63910C44397B1D049DE9B5A57E4C123EB2F0ECC6',396251);
INSERT INTO "_sqlx_migrations" VALUES(7,'changes of tenants','2026-11-19 18:26:36',1,X'B479898D9828E96B0E065C2FB4371D3A50C597B357DD4D99FEE8D9F2D46C21BDDD5F328459FA0D1029ECF3188427ACD7',226087);
INSERT INTO "_sqlx_migrations" VALUES(8,'callbacks','2026-11-19 18:26:36',1,X'52D6A0D920E5CD8E9966B5F59E533BDA8718335A0494DF8345E12A0D094BCD9ED05DEA33736E7D34E2518C962724B02B',306948);
CREATE TABLE audit (
    id TEXT NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL
);
INSERT INTO "audit" VALUES('01a1f50f-82c8-71aa-967b-4216636d58b3',1795112796872,'cli:root','tenant.add','tenant:acme','{"burst":null,"callback_hosts":[],"generation":"45b80e1cbecfb456","limits":{},"max_in_flight":256,"rate":"100/s","revoked_keys":0,"servers":["std","own"],"weight":1}');
INSERT INTO "audit" VALUES('01a1f50f-82e6-70ac-9a9b-3e176b6b16d0',1795112796902,'cli:root','key.create','key:kiRPZShZytRM','{"expires":null,"name":null,"tenant":"acme"}');
INSERT INTO "audit" VALUES('01a1f50f-8306-73a2-b028-58f70fb3a77a',1795112796934,'cli:root','secret.set','tenant:acme','{"name":"TOKEN","server":"own"}');
INSERT INTO "audit" VALUES('01a1f50f-8347-7794-bf93-7bd7c8ffc1e8',1795112796999,'gateway','pin.first_use','server:std','{"tools":7}');
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
CREATE TABLE call_labels (
    tenant TEXT NOT NULL,
    label TEXT NOT NULL,
    call TEXT NOT NULL,
    PRIMARY KEY (tenant, label, call)
);
CREATE TABLE call_results (
    call TEXT NOT NULL,
    part BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (call, part)
);
CREATE TABLE call_usage (
    tenant TEXT NOT NULL,
    generation BIGINT NOT NULL,
    shard BIGINT NOT NULL,
    records BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant, generation, shard)
);
INSERT INTO "call_usage" VALUES('acme',5023780900954944598,14,1,439);
CREATE TABLE callback_secrets (
    tenant TEXT NOT NULL PRIMARY KEY,
    sealed TEXT NOT NULL,
    previous TEXT,
    until BIGINT
);
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
INSERT INTO "calls" VALUES('01a1f50f8ef17f0a9d0e96d1189a1079','acme',5023780900954944598,'l12fs2uFUvtrUytZC_tI2Li5oCnzflI2PzG4QIZ63kc','RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o','std','uuid',2,'3207c5a4dc4e46d496214cbe175c5c67','{"timeout_ms":30000}',NULL,1795112799984,1795112799984,1795112799985,1795199199984,'{"status":200,"outcome":"ok","executed":"yes","code":null,"attempts":1,"queue_us":25,"backend_us":205}','~4GJz4Ne1iFIZ6Ok3-o--pp0w1iaNkI0-gESt8auilqnkAvfpEN_Z3dz_Q8LjZ0OQPRPvGikl_y1shlJnM-02UCbmeATRJwFNJspDpxwHLGIoMlqVDKVBvcCPeo8MuPX4ELOuIYF4yASKbr2d1VQWg81wSFwmVastSb4Rt_fdx-5sDsZhVMJikC9FwmpLX2z1NeVGGziI8ZuIytnRMleNUkCB8hSGINm-M1A_GsKl16I7Qc__UuP0YUx4O4tn861Rbec_BuymGqbO9W7aS7c1CfRK4P2JMV5O7_kBk8L24uHj8s08q309JXktQ6F4ofmFb90sG6eKg6zy771G97w0xubIjx-uMQSEUxY5RzJxKuZU3MOdXbO6wSoE4Zt0j86AHrDHfA3ExwZr9shX4CAm-LJJWxf1Qo8IGW4mKtNCvML50P3ZCOMNrg',439,0);
CREATE TABLE ended_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    expires BIGINT NOT NULL,
    revision BIGINT NOT NULL
, tenant TEXT);
CREATE TABLE file_tenants (
    name TEXT NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL,
    since BIGINT NOT NULL
);
CREATE TABLE grants (
    tenant TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    pattern TEXT NOT NULL,
    PRIMARY KEY (tenant, position)
);
INSERT INTO "grants" VALUES('acme',0,'std');
INSERT INTO "grants" VALUES('acme',1,'own');
CREATE TABLE held_definitions (
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    hash TEXT NOT NULL,
    definition TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    PRIMARY KEY (server, tool, hash)
);
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
INSERT INTO "keys" VALUES('kiRPZShZytRM','acme','7c167ecc631ae6f30c5980aa7b7ff809ad0df8a64de719e4bf3f183ac29fbe5c',NULL,1795112796902,NULL,NULL,1795112800006);
CREATE TABLE limits (
    tenant TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
    pattern TEXT NOT NULL,
    rate TEXT,
    burst BIGINT,
    max_in_flight BIGINT,
    PRIMARY KEY (tenant, pattern)
);
CREATE TABLE pinned_servers (
    server TEXT NOT NULL PRIMARY KEY,
    first_use BIGINT NOT NULL
);
INSERT INTO "pinned_servers" VALUES('std',1795112796999);
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
INSERT INTO "pins" VALUES('std','echo','sha256:7725a99f55534fef4a092b63b101c2e12a884c107d3c1dd3995476e434ca9c4e','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Returns the text it is given, unchanged.","inputSchema":{"additionalProperties":false,"properties":{"text":{"description":"The text to return","type":"string"}},"required":["text"],"type":"object"},"name":"echo","title":"Echo"}',1795112796999,'first use',NULL);
INSERT INTO "pins" VALUES('std','sleep','sha256:6850fb7dee0520690e98a5e3f59ce555b84f9874cc71bb1de86b27c2876404ac','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Waits for a while, then returns. It can be cancelled.","inputSchema":{"additionalProperties":false,"properties":{"ms":{"description":"How long to wait, in milliseconds","maximum":3600000,"minimum":0,"type":"integer"}},"required":["ms"],"type":"object"},"name":"sleep","title":"Sleep"}',1795112796999,'first use',NULL);
INSERT INTO "pins" VALUES('std','time','sha256:cd18eb30ca0822263cb2d40b24629d74e755d2d0c763a22c239d0bf028782e6e','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Tells the current time in a time zone.","inputSchema":{"additionalProperties":false,"properties":{"timezone":{"default":"UTC","description":"An IANA time zone name, such as Europe/Berlin","type":"string"}},"required":[],"type":"object"},"name":"time","outputSchema":{"additionalProperties":false,"properties":{"time":{"format":"date-time","type":"string"},"timezone":{"type":"string"},"unix_ms":{"type":"integer"}},"required":["time","timezone","unix_ms"],"type":"object"},"title":"Current time"}',1795112796999,'first use',NULL);
INSERT INTO "pins" VALUES('std','hash','sha256:8b4c363b9833858364d1fb080d05432f3adb85d3583f9a542f807302a5862e99','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Computes the SHA-2 hash of a text''s UTF-8 bytes, in lower-case hexadecimal.","inputSchema":{"additionalProperties":false,"properties":{"algorithm":{"enum":["sha256","sha384","sha512"],"type":"string"},"text":{"description":"The text to hash","type":"string"}},"required":["algorithm","text"],"type":"object"},"name":"hash","outputSchema":{"additionalProperties":false,"properties":{"algorithm":{"type":"string"},"hex":{"type":"string"}},"required":["algorithm","hex"],"type":"object"},"title":"Hash"}',1795112796999,'first use',NULL);
INSERT INTO "pins" VALUES('std','uuid','sha256:c8ea8a4982454bb78eb23d3c687feaff2bcbb6e68a8192684452d7fa9faab1ce','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Makes a new random UUID (version 4).","inputSchema":{"additionalProperties":false,"properties":{},"required":[],"type":"object"},"name":"uuid","outputSchema":{"additionalProperties":false,"properties":{"uuid":{"format":"uuid","type":"string"}},"required":["uuid"],"type":"object"},"title":"Random UUID"}',1795112796999,'first use',NULL);
INSERT INTO "pins" VALUES('std','json_query','sha256:8c1a79c59cc07e3e391511a5408e5ccb640affb1c79f840483d21aa930456436','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Returns the part of a JSON value that a JSON Pointer (RFC 6901, at most 128 steps) leads to, written as it was given.","inputSchema":{"additionalProperties":false,"properties":{"json":{"description":"Any JSON value"},"pointer":{"description":"Such as /users/0/name; empty for the whole value","type":"string"}},"required":["json","pointer"],"type":"object"},"name":"json_query","title":"JSON query"}',1795112796999,'first use',NULL);
INSERT INTO "pins" VALUES('std','fail','sha256:c6200545b5509aad06f214731426b0f0a87f12fdf05bbd64aa6de543a41ae0ca','{"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true},"description":"Always fails, with the message it is given. For trying out how failures look.","inputSchema":{"additionalProperties":false,"properties":{"message":{"description":"What to fail with","type":"string"}},"required":["message"],"type":"object"},"name":"fail","title":"Fail"}',1795112796999,'first use',NULL);
CREATE TABLE replicas (
    id TEXT NOT NULL PRIMARY KEY,
    address TEXT NOT NULL,
    seen BIGINT NOT NULL
);
CREATE TABLE revisions (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO "revisions" VALUES('policy',3);
INSERT INTO "revisions" VALUES('secrets',2);
INSERT INTO "revisions" VALUES('sessions',0);
INSERT INTO "revisions" VALUES('file_tenants',0);
CREATE TABLE secret_changes (
    revision BIGINT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL
);
INSERT INTO "secret_changes" VALUES(1,'acme');
INSERT INTO "secret_changes" VALUES(2,'acme');
CREATE TABLE secrets (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE tenant_secrets (
    tenant TEXT NOT NULL,
    server TEXT NOT NULL,
    name TEXT NOT NULL,
    sealed TEXT NOT NULL,
    version BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    PRIMARY KEY (tenant, server, name)
);
INSERT INTO "tenant_secrets" VALUES('acme','own','TOKEN','3GES4U2MREAs5lN5uQ9IkqDZNsTSw7vFT2NMSNjQngzwWLYuAH4OLgbuZWoD-vg0Tg',2,1795112796934);
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
INSERT INTO "tenant_usage" VALUES(1795112760000,'acme',5023780900954944598,'own','echo',1,0,0,14645,67,12,170);
INSERT INTO "tenant_usage" VALUES(1795112760000,'acme',5023780900954944598,'std','uuid',1,0,0,25,205,2,288);
CREATE TABLE tenants (
    id TEXT NOT NULL PRIMARY KEY,
    rate TEXT,
    burst BIGINT,
    max_in_flight BIGINT,
    weight BIGINT NOT NULL,
    created BIGINT NOT NULL,
    changed BIGINT NOT NULL
, generation BIGINT, callback_hosts TEXT);
INSERT INTO "tenants" VALUES('acme','100/s',NULL,256,1,1795112796872,1795112796872,5023780900954944598,'[]');
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
CREATE TABLE usage_batches (
    replica TEXT NOT NULL,
    batch BIGINT NOT NULL,
    added BIGINT NOT NULL,
    PRIMARY KEY (replica, batch)
);
INSERT INTO "usage_batches" VALUES('e354ddede80b44488f1b5507d9b09b2b',1,1795112800996);
CREATE INDEX keys_tenant ON keys (tenant);
CREATE INDEX usage_tenant_minute ON usage (tenant, minute);
CREATE INDEX usage_batches_added ON usage_batches (added);
CREATE INDEX audit_at ON audit (at);
CREATE INDEX ended_sessions_revision ON ended_sessions (revision, id);
CREATE INDEX ended_sessions_expires ON ended_sessions (expires);
CREATE INDEX tenant_usage_tenant_minute ON tenant_usage (tenant, minute);
CREATE UNIQUE INDEX calls_scope ON calls (scope);
CREATE INDEX calls_tenant ON calls (tenant, id);
CREATE INDEX calls_expires ON calls (expires);
CREATE INDEX calls_open ON calls (owner) WHERE state < 2;
CREATE INDEX call_labels_call ON call_labels (call);
CREATE INDEX call_callbacks_due ON call_callbacks (tenant, due) WHERE state = 1;
COMMIT;
