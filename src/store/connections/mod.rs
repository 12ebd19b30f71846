//! Tenants' connections to servers (OAuth), sealed. The store cannot open them.

mod clients;
mod revocations;
mod states;

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::open::DatabaseKind;
use super::secrets::{self, CONNECTION, Label};
use super::{
    Actor, Result, Store, StoreError, Subject, Tx, audit, present_generation, with_timeout,
};
use crate::common::ids::{ServerId, TenantGeneration, TenantId, TenantName};

pub use self::revocations::Revocation;
pub use self::states::NewState;

/// A tenant's connection to a server. Has no `Debug`: sealed values must not be logged either.
#[derive(Clone)]
pub struct StoredConnection {
    pub id: String,
    pub sealed: String,
    /// Counts its tokens.
    pub version: i64,
    /// Scopes that the server wants beside those that the tenant has agreed to.
    pub asked: String,
    /// In milliseconds since 1970.
    pub connected: i64,
}

/// A new connection, sealed.
pub struct NewConnection<'a> {
    pub tenant: &'a TenantId,
    pub server: &'a ServerId,
    pub id: &'a str,
    pub sealed: &'a str,
    /// The id, sealed as a secret of the tenant: gateways follow it.
    pub mark: &'a str,
}

type Row = (String, String, i64, String, i64);

impl Store {
    pub async fn connection(
        &self,
        tenant: &TenantId,
        server: &ServerId,
    ) -> Result<Option<StoredConnection>> {
        let row = sqlx::query_as::<_, Row>(
            "SELECT id, sealed, version, asked, connected FROM oauth_connections \
             WHERE tenant = $1 AND server = $2 AND generation = $3",
        );
        let row = row.bind(tenant.name().as_str()).bind(server.as_str());
        let row = row.bind(tenant.generation().number());
        let row = with_timeout(row.fetch_optional(&self.pool()?)).await?;
        Ok(row.map(|(id, sealed, version, asked, connected)| StoredConnection {
            id,
            sealed,
            version,
            asked,
            connected,
        }))
    }

    /// Connects a tenant. Tokens of an earlier connection will be revoked.
    pub async fn connect(&self, actor: &Actor, new: NewConnection<'_>) -> Result<()> {
        let (name, server) = (new.tenant.name(), new.server);
        with_timeout(async {
            let (mut change, revision) = self.change_of(Subject::Secrets).await?;
            actor.must_be_present(&mut change).await?;
            // The tenant may have been removed while its person was asked.
            if present_generation(&mut change, name).await? != new.tenant.generation() {
                return Err(StoreError::NotFound(format!("tenant `{name}`")));
            }
            remove(self.0.kind, &mut change, name, Some(server)).await?;
            let text = format!(
                "INSERT INTO oauth_connections (tenant, server, generation, id, sealed, version, \
                 connected) VALUES ($1, $2, $3, $4, $5, 1, ({}))",
                self.0.kind.clock()
            );
            sqlx::query(AssertSqlSafe(text))
                .bind(name.as_str())
                .bind(server.as_str())
                .bind(new.tenant.generation().number())
                .bind(new.id)
                .bind(new.sealed)
                .execute(&mut *change)
                .await?;
            let mark = Label { tenant: name, server, name: CONNECTION };
            secrets::write(&mut change, mark, new.mark, revision).await?;
            secrets::note_change(&mut change, revision, name).await?;
            note(&mut change, actor, "connection.set", name, server).await?;
            Ok::<_, StoreError>(change.commit().await?)
        })
        .await
    }

    /// Ends a tenant's connection; only the one of this id, if one is given. Returns whether there
    /// was one.
    pub async fn disconnect(
        &self,
        actor: &Actor,
        tenant: &TenantName,
        server: &ServerId,
        id: Option<&str>,
    ) -> Result<bool> {
        with_timeout(async {
            let (mut change, revision) = self.change_of(Subject::Secrets).await?;
            let present: Option<String> = sqlx::query_scalar(
                "SELECT id FROM oauth_connections WHERE tenant = $1 AND server = $2",
            )
            .bind(tenant.as_str())
            .bind(server.as_str())
            .fetch_optional(&mut *change)
            .await?;
            if present.is_none_or(|present| id.is_some_and(|id| id != present)) {
                return Ok(false);
            }
            remove(self.0.kind, &mut change, tenant, Some(server)).await?;
            secrets::delete_mark(&mut change, tenant, server).await?;
            secrets::note_change(&mut change, revision, tenant).await?;
            note(&mut change, actor, "connection.remove", tenant, server).await?;
            change.commit().await?;
            Ok::<_, StoreError>(true)
        })
        .await
    }

    /// Takes the right to refresh the tokens of this version, for `lease_ms`. Of several gateways,
    /// one gets it.
    pub async fn lease_connection(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        of: &StoredConnection,
        lease_ms: i64,
    ) -> Result<bool> {
        let clock = self.0.kind.clock();
        let text = format!(
            "UPDATE oauth_connections SET leased = ({clock}) + $6 WHERE tenant = $1 \
             AND server = $2 AND generation = $3 AND id = $4 AND version = $5 \
             AND leased <= ({clock})"
        );
        let lease = sqlx::query(AssertSqlSafe(text)).bind(tenant.name().to_string());
        let lease = lease.bind(server.to_string()).bind(tenant.generation().number());
        let lease = lease.bind(of.id.clone()).bind(of.version).bind(lease_ms);
        let leased = with_timeout(lease.execute(&self.pool()?)).await?;
        Ok(leased.rows_affected() > 0)
    }

    /// Replaces the tokens of a version that was leased, or gives the lease back without new ones.
    pub async fn renew_connection(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        of: &StoredConnection,
        sealed: Option<&str>,
    ) -> Result<bool> {
        let renew = sqlx::query(
            "UPDATE oauth_connections SET leased = 0, sealed = COALESCE($6, sealed), \
             version = version + CASE WHEN $6 IS NULL THEN 0 ELSE 1 END WHERE tenant = $1 \
             AND server = $2 AND generation = $3 AND id = $4 AND version = $5",
        );
        let renew = renew.bind(tenant.name().as_str()).bind(server.as_str());
        let renew = renew.bind(tenant.generation().number()).bind(&of.id).bind(of.version);
        let renewed = with_timeout(renew.bind(sealed).execute(&self.pool()?)).await?;
        Ok(renewed.rows_affected() > 0)
    }

    /// Notes the scopes that a server wants beside those that the tenant has agreed to.
    pub async fn note_asked_scopes(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        asked: &str,
    ) -> Result<()> {
        let note = sqlx::query(
            "UPDATE oauth_connections SET asked = $4 \
             WHERE tenant = $1 AND server = $2 AND generation = $3",
        );
        let note = note.bind(tenant.name().as_str()).bind(server.as_str());
        let note = note.bind(tenant.generation().number()).bind(asked);
        with_timeout(note.execute(&self.pool()?)).await.map(drop)
    }

    /// Notes which servers are configured here, and ends the connections to those that have been
    /// configured nowhere for `after_ms`. Those of `removed` end at once. Returns how many.
    pub async fn end_connections_without_server(
        &self,
        configured: &[ServerId],
        removed: &[ServerId],
        after_ms: i64,
    ) -> Result<usize> {
        let names = |ids: &[ServerId]| json!(ids.iter().map(ServerId::as_str).collect::<Vec<_>>());
        let (configured, removed) = (names(configured).to_string(), names(removed).to_string());
        let (clock, texts) = (self.0.kind.clock(), self.0.kind.json_texts());
        let configured_here = format!("server IN {texts}");
        let seen = format!(
            "UPDATE oauth_connections SET gone = CASE WHEN {configured_here} THEN NULL \
             ELSE ({clock}) END WHERE (gone IS NULL) <> ({configured_here})"
        );
        let over = format!(
            "SELECT tenant, server, id FROM oauth_connections WHERE {texts_and_gone}",
            texts_and_gone = format_args!("server IN {texts} OR gone <= ({clock}) - $2"),
        );
        let seen = sqlx::query(AssertSqlSafe(seen)).bind(configured);
        with_timeout(seen.execute(&self.pool()?)).await?;
        let over = sqlx::query_as::<_, (String, String, String)>(AssertSqlSafe(over));
        let over = over.bind(removed).bind(after_ms);
        let over = with_timeout(over.fetch_all(&self.pool()?)).await?;
        let mut ended = 0;
        for (tenant, server, id) in over {
            let (Ok(tenant), Ok(server)) = (TenantName::parse(&tenant), ServerId::parse(&server))
            else {
                continue;
            };
            let actor = Actor::gateway();
            ended += usize::from(self.disconnect(&actor, &tenant, &server, Some(&id)).await?);
        }
        Ok(ended)
    }

    /// Passes all connections to `reseal`, and stores the sealed values it returns. The tokens stay
    /// the same.
    pub async fn reseal_connections(
        &self,
        mut reseal: impl FnMut(&TenantId, &ServerId, &str) -> Option<String>,
    ) -> Result<super::Rotated> {
        let mut rotated = super::Rotated::default();
        let rows = sqlx::query_as::<_, (String, i64, String, String, i64)>(
            "SELECT tenant, generation, server, sealed, version FROM oauth_connections",
        );
        let rows = self.read_all(async { Ok(rows.fetch_all(&self.pool()?).await?) }).await?;
        for (tenant, generation, server, sealed, version) in rows {
            rotated.seen += 1;
            let (Ok(name), Ok(server)) = (TenantName::parse(&tenant), ServerId::parse(&server))
            else {
                continue;
            };
            let tenant = name.of(TenantGeneration::from_number(generation));
            let Some(anew) = reseal(&tenant, &server, &sealed) else { continue };
            // Tokens that a gateway has refreshed meanwhile are sealed by its first key.
            let write = sqlx::query(
                "UPDATE oauth_connections SET sealed = $4 \
                 WHERE tenant = $1 AND server = $2 AND version = $3 AND sealed = $5",
            );
            let write = write.bind(tenant.name().as_str()).bind(server.as_str()).bind(version);
            let write = write.bind(anew).bind(&sealed);
            let pool = self.pool()?;
            rotated.resealed += with_timeout(write.execute(&pool)).await?.rows_affected();
        }
        Ok(rotated)
    }
}

/// Ends a tenant's connection to a server, or all of them. The tokens will be revoked.
pub(super) async fn remove(
    kind: DatabaseKind,
    change: &mut Tx,
    tenant: &TenantName,
    server: Option<&ServerId>,
) -> Result<()> {
    let text = format!(
        "INSERT INTO oauth_revocations (id, tenant, generation, server, sealed, due) \
         SELECT id, tenant, generation, server, sealed, ({}) FROM oauth_connections \
         WHERE tenant = $1 AND ($2 IS NULL OR server = $2) ON CONFLICT DO NOTHING",
        kind.clock()
    );
    let server = server.map(ServerId::as_str);
    let revoke = sqlx::query(AssertSqlSafe(text)).bind(tenant.as_str().to_owned());
    revoke.bind(server.map(str::to_owned)).execute(&mut **change).await?;
    let delete = sqlx::query(
        "DELETE FROM oauth_connections WHERE tenant = $1 AND ($2 IS NULL OR server = $2)",
    );
    delete.bind(tenant.as_str()).bind(server).execute(&mut **change).await?;
    if server.is_none() {
        let states = sqlx::query("DELETE FROM oauth_states WHERE tenant = $1");
        states.bind(tenant.as_str()).execute(&mut **change).await?;
    }
    Ok(())
}

async fn note(
    change: &mut Tx,
    actor: &Actor,
    action: &str,
    tenant: &TenantName,
    server: &ServerId,
) -> Result<()> {
    let (target, detail): (_, Value) =
        (format!("tenant:{tenant}"), json!({"server": server.as_str()}));
    audit::note_of_tenant(change, actor, action, target, tenant, detail).await
}
