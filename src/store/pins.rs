//! Definitions of tools: approved ones, and those held back.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::json;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, AssertSqlSafe, Row};

use super::tenants::skip_corrupt;
use super::{
    Actor, Result, Store, StoreError, Tx, audit, can_be_stored, now, placeholders, with_timeout,
};
use crate::common::ids::ServerId;
use crate::pins::{Definition, Hash, Held, Pin};

/// Definitions held back for one server. Further ones wait until there is room.
pub const HELD_MAX: usize = 500;
/// Few enough that one prepared statement serves most writes.
const ROWS_MAX: usize = 50;
/// The approver of tools that a server had when it was first seen.
const FIRST_USE: &str = "first use";

/// One server's definitions, without their texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    pub approved: HashMap<String, Hash>,
    /// Approved tools that the server no longer has.
    pub gone: HashSet<String>,
    pub held: HashSet<(String, Hash)>,
}

/// Differences between a server's tools and the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Definitions to hold back.
    pub held: Vec<Definition>,
    /// Held definitions that the server no longer has.
    pub released: Vec<(String, Hash)>,
    /// Approved tools that the server no longer has.
    pub gone: Vec<String>,
    /// Approved tools that it has again.
    pub back: Vec<String>,
}

impl Sighting {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

type PinRow = (String, String, String, String, i64, String, Option<i64>);
type HeldRow = (String, String, String, String, i64);

impl Store {
    /// Returns all pinned servers, consistently.
    pub async fn pinned(&self) -> Result<BTreeMap<ServerId, Pinned>> {
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            read_pinned(&mut snapshot).await
        })
        .await
    }

    /// Returns approved and held definitions of one server or of all, consistently.
    pub async fn pins(&self, server: Option<&ServerId>) -> Result<(Vec<Pin>, Vec<Held>)> {
        let server = server.map(ServerId::as_str);
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            let pins: Vec<PinRow> = sqlx::query_as(
                "SELECT server, tool, hash, definition, approved_at, approved_by, gone FROM pins \
                 WHERE $1 IS NULL OR server = $1 ORDER BY server, tool",
            )
            .bind(server)
            .fetch_all(&mut *snapshot)
            .await?;
            let held: Vec<HeldRow> = sqlx::query_as(
                "SELECT server, tool, hash, definition, first_seen FROM held_definitions \
                 WHERE $1 IS NULL OR server = $1 ORDER BY server, tool, hash",
            )
            .bind(server)
            .fetch_all(&mut *snapshot)
            .await?;
            let pins = pins.into_iter().map(pin).filter_map(skip_corrupt).collect();
            let held = held.into_iter().map(held_back).filter_map(skip_corrupt).collect();
            Ok::<_, StoreError>((pins, held))
        })
        .await
    }

    /// Approves the tools of a server that is seen for the first time. Returns whether it was: of
    /// several replicas, the first one's tools count for all.
    pub async fn first_use(&self, server: &ServerId, definitions: &[Definition]) -> Result<bool> {
        with_timeout(async {
            let mut change = self.change().await?;
            let first = sqlx::query(
                "INSERT INTO pinned_servers (server, first_use) VALUES ($1, $2) \
                 ON CONFLICT (server) DO NOTHING",
            );
            let first = first.bind(server.as_str()).bind(now());
            if first.execute(&mut *change).await?.rows_affected() == 0 {
                return Ok(false);
            }
            for some in definitions.chunks(ROWS_MAX) {
                write_pins(&mut change, server, some, FIRST_USE).await?;
            }
            let detail = json!({"tools": definitions.len()});
            let actor = Actor::gateway();
            audit::note(&mut change, &actor, "pin.first_use", target(server), detail).await?;
            change.commit().await?;
            Ok::<_, StoreError>(true)
        })
        .await
    }

    /// Writes differences. Only those who approve read them, so nobody is notified.
    pub async fn record_sighting(&self, server: &ServerId, sighting: &Sighting) -> Result<()> {
        with_timeout(async {
            let mut write = self.write().await?;
            let released: Vec<Hash> = sighting.released.iter().map(|(_, hash)| *hash).collect();
            for some in released.chunks(ROWS_MAX) {
                delete_held(&mut write, server, some).await?;
            }
            for definition in sighting.held.iter().take(HELD_MAX) {
                insert_held(&mut write, server, definition).await?;
            }
            for (tools, since) in [(&sighting.gone, Some(now())), (&sighting.back, None)] {
                for some in tools.chunks(ROWS_MAX) {
                    set_gone(&mut write, server, some, since).await?;
                }
            }
            write.commit().await?;
            Ok::<_, StoreError>(())
        })
        .await
    }

    /// Approves held definitions, all or none. The hash ensures that what was reviewed is approved.
    /// Returns the names of the tools.
    pub async fn approve(
        &self,
        actor: &Actor,
        server: &ServerId,
        hashes: &[Hash],
    ) -> Result<Vec<String>> {
        with_timeout(async {
            let mut change = self.change().await?;
            let mut wanted = BTreeMap::new();
            for some in hashes.chunks(ROWS_MAX) {
                let held = held_definitions(&mut change, server, some).await?;
                // Of two definitions of one tool, the last.
                wanted.extend(held.into_iter().map(|held| (held.tool.clone(), held)));
            }
            let approved: BTreeMap<_, _> =
                wanted.iter().map(|(tool, held)| (tool, held.hash.to_string())).collect();
            let definitions: Vec<Definition> = wanted.values().cloned().collect();
            for some in definitions.chunks(ROWS_MAX) {
                write_pins(&mut change, server, some, actor.as_str()).await?;
                let hashes: Vec<Hash> = some.iter().map(|definition| definition.hash).collect();
                delete_held(&mut change, server, &hashes).await?;
            }
            let detail = json!({"tools": approved});
            audit::note(&mut change, actor, "pin.approve", target(server), detail).await?;
            change.commit().await?;
            Ok::<_, StoreError>(wanted.into_keys().collect())
        })
        .await
    }

    /// Forgets one approval: the tool is held back as if it were new. Without a tool, forgets the
    /// whole server: its tools are approved when it is next seen. Returns how many were forgotten.
    pub async fn forget_pins(
        &self,
        actor: &Actor,
        server: &ServerId,
        tool: Option<&str>,
    ) -> Result<u64> {
        let unknown = || {
            StoreError::NotFound(match tool {
                Some(tool) => format!("approved tool {tool:?} of server `{server}`"),
                None => format!("pinned server `{server}`"),
            })
        };
        if !tool.is_none_or(can_be_stored) {
            return Err(unknown());
        }
        with_timeout(async {
            let mut change = self.change().await?;
            let pins =
                sqlx::query("DELETE FROM pins WHERE server = $1 AND ($2 IS NULL OR tool = $2)");
            let pins = pins.bind(server.as_str()).bind(tool);
            let forgotten = pins.execute(&mut *change).await?.rows_affected();
            let known = match tool {
                Some(_) => forgotten,
                None => {
                    let held = sqlx::query("DELETE FROM held_definitions WHERE server = $1");
                    held.bind(server.as_str()).execute(&mut *change).await?;
                    let known = sqlx::query("DELETE FROM pinned_servers WHERE server = $1");
                    known.bind(server.as_str()).execute(&mut *change).await?.rows_affected()
                }
            };
            if known == 0 {
                return Err(unknown());
            }
            let detail = json!({"tool": tool, "forgotten": forgotten});
            audit::note(&mut change, actor, "pin.forget", target(server), detail).await?;
            change.commit().await?;
            Ok(forgotten)
        })
        .await
    }
}

async fn read_pinned(connection: &mut AnyConnection) -> Result<BTreeMap<ServerId, Pinned>> {
    let servers: Vec<String> =
        sqlx::query_scalar("SELECT server FROM pinned_servers").fetch_all(&mut *connection).await?;
    let approved: Vec<(String, String, String, Option<i64>)> =
        sqlx::query_as("SELECT server, tool, hash, gone FROM pins")
            .fetch_all(&mut *connection)
            .await?;
    let held: Vec<(String, String, String)> =
        sqlx::query_as("SELECT server, tool, hash FROM held_definitions")
            .fetch_all(connection)
            .await?;
    let servers = servers.iter().map(|server| Ok((server_id(server)?, Pinned::default())));
    let mut pinned: BTreeMap<_, _> = servers.filter_map(skip_corrupt).collect();
    for (server, tool, text, gone) in approved {
        let Some(pinned) = pinned.get_mut(server.as_str()) else { continue };
        let Some(hash) = skip_corrupt(parse_hash(&text)) else { continue };
        if gone.is_some() {
            pinned.gone.insert(tool.clone());
        }
        pinned.approved.insert(tool, hash);
    }
    for (server, tool, text) in held {
        let Some(pinned) = pinned.get_mut(server.as_str()) else { continue };
        pinned.held.extend(skip_corrupt(parse_hash(&text)).map(|hash| (tool, hash)));
    }
    Ok(pinned)
}

/// Returns held definitions. Fails if one is not held.
async fn held_definitions(
    change: &mut Tx,
    server: &ServerId,
    hashes: &[Hash],
) -> Result<Vec<Definition>> {
    let text = "SELECT tool, hash, definition FROM held_definitions WHERE server = $1 AND hash IN";
    let rows = by_hash(text, server, hashes).fetch_all(&mut **change).await?;
    let definition = |row: &AnyRow| {
        let hash = parse_hash(row.try_get("hash")?)?;
        Ok(Definition { tool: row.try_get("tool")?, hash, text: row.try_get("definition")? })
    };
    let held: Vec<Definition> = rows.iter().map(definition).collect::<Result<_>>()?;
    match hashes.iter().find(|hash| !held.iter().any(|held| held.hash == **hash)) {
        Some(hash) => Err(StoreError::NotHeld { server: server.clone(), hash: *hash }),
        None => Ok(held),
    }
}

/// Builds a statement about definitions of a server.
fn by_hash<'a>(text: &str, server: &'a ServerId, hashes: &[Hash]) -> Query<'a, Any, AnyArguments> {
    let text = format!("{text} ({})", placeholders_from(2, hashes.len()));
    let is_usual = matches!(hashes.len(), 1 | ROWS_MAX);
    let query = sqlx::query(AssertSqlSafe(text)).persistent(is_usual).bind(server.as_str());
    hashes.iter().fold(query, |query, hash| query.bind(hash.to_string()))
}

/// Replaces earlier approvals of the same tools.
async fn write_pins(
    change: &mut Tx,
    server: &ServerId,
    definitions: &[Definition],
    by: &str,
) -> Result<()> {
    let placeholders = placeholders(definitions.len(), 6);
    let text = format!(
        "INSERT INTO pins (server, tool, hash, definition, approved_at, approved_by) \
         VALUES {placeholders} ON CONFLICT (server, tool) DO UPDATE \
         SET hash = excluded.hash, definition = excluded.definition, \
         approved_at = excluded.approved_at, approved_by = excluded.approved_by, gone = NULL"
    );
    let mut rows =
        sqlx::query(AssertSqlSafe(text)).persistent(matches!(definitions.len(), 1 | ROWS_MAX));
    let now = now();
    for Definition { tool, hash, text } in definitions {
        rows = rows.bind(server.as_str()).bind(tool).bind(hash.to_string()).bind(text);
        rows = rows.bind(now).bind(by);
    }
    rows.execute(&mut **change).await?;
    Ok(())
}

/// Does nothing if the server has [`HELD_MAX`] already.
async fn insert_held(
    write: &mut Tx,
    server: &ServerId,
    Definition { tool, hash, text }: &Definition,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO held_definitions (server, tool, hash, definition, first_seen) \
         SELECT $1, $2, $3, $4, $5 \
         WHERE (SELECT COUNT(*) FROM held_definitions WHERE server = $1) < $6 \
         ON CONFLICT (server, tool, hash) DO NOTHING",
    )
    .bind(server.as_str())
    .bind(tool)
    .bind(hash.to_string())
    .bind(text)
    .bind(now())
    .bind(HELD_MAX as i64)
    .execute(&mut **write)
    .await?;
    Ok(())
}

async fn delete_held(write: &mut Tx, server: &ServerId, hashes: &[Hash]) -> Result<()> {
    let text = "DELETE FROM held_definitions WHERE server = $1 AND hash IN";
    by_hash(text, server, hashes).execute(&mut **write).await?;
    Ok(())
}

/// Sets since when the server no longer has these tools; `None` if it has them.
async fn set_gone(
    write: &mut Tx,
    server: &ServerId,
    tools: &[String],
    since: Option<i64>,
) -> Result<()> {
    let placeholders = placeholders_from(3, tools.len());
    let text = format!("UPDATE pins SET gone = $2 WHERE server = $1 AND tool IN ({placeholders})");
    let update = sqlx::query(AssertSqlSafe(text)).persistent(matches!(tools.len(), 1 | ROWS_MAX));
    let update = update.bind(server.as_str()).bind(since);
    let update = tools.iter().fold(update, |update, tool| update.bind(tool));
    update.execute(&mut **write).await?;
    Ok(())
}

/// Returns `$3, $4` for two values from 3 on.
fn placeholders_from(first: usize, len: usize) -> String {
    (first..first + len).map(|at| format!("${at}")).collect::<Vec<_>>().join(", ")
}

fn pin((server, tool, hash, text, at, by, gone): PinRow) -> Result<Pin> {
    let definition = Definition { tool, hash: parse_hash(&hash)?, text };
    Ok(Pin { server: server_id(&server)?, definition, at, by, gone })
}

fn held_back((server, tool, hash, text, since): HeldRow) -> Result<Held> {
    let definition = Definition { tool, hash: parse_hash(&hash)?, text };
    Ok(Held { server: server_id(&server)?, definition, since })
}

fn server_id(text: &str) -> Result<ServerId> {
    ServerId::parse(text).map_err(|error| StoreError::Corrupt(format!("pins: {error}")))
}

fn parse_hash(text: &str) -> Result<Hash> {
    text.parse().map_err(|error| StoreError::Corrupt(format!("pins: `{text}`: {error}")))
}

fn target(server: &ServerId) -> String {
    format!("server:{server}")
}
