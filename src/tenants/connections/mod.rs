//! Tenants' connections to servers that want OAuth: a person of the tenant agrees in a browser, and
//! the gateway keeps the tokens for that tenant alone.
//!
//! - [`connect`]: from the person's consent to the tokens
//! - [`clients`]: as whom the gateway asks
//! - [`token`]: a valid token, refreshed by one gateway at a time
//! - [`upkeep`]: revokes tokens that nobody may use any more
//! - [`held`]: tokens, and how they are sealed

mod clients;
mod connect;
mod held;
mod token;
mod upkeep;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use self::held::TokenSealer;
use crate::common::ids::{ServerId, TenantId, TenantName};
use crate::config::{Config, ServerConfig, Transport};
use crate::oauth::OAuthError;
use crate::oauth::provider::Provider;
use crate::store::{Store, StoreError};
use crate::tenants::Directory;
use crate::tenants::secrets::CONNECTION;

pub use self::connect::{Callback, ConnectError};
pub use self::held::ConnectionKeyring;
pub use self::token::{AccessToken, NoToken};

/// The page at which a tenant connects itself, before the server's name.
pub const CONNECT_PAGE: &str = "/me/connect/";
/// The page that authorization servers send browsers back to.
pub const CALLBACK_PAGE: &str = "/oauth/callback";
/// The metadata of the gateway as a client, before the server's name.
pub const CLIENT_DOCUMENT: &str = "/oauth/clients/";

/// Kept of the time of a call that waits for a person, for its answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Tenants and servers of which is remembered that a server asks for more. Others get the reason.
const ASKED_MAX: usize = 4096;

/// Tenants' connections to all servers.
pub struct Connections {
    store: Store,
    directory: Arc<Directory>,
    sealer: TokenSealer,
    /// The address at which browsers reach the gateway.
    public_url: Option<String>,
    servers: ArcSwap<Servers>,
    providers: Mutex<HashMap<ServerId, Arc<Provider>>>,
    /// Tenants of which a server asks for more than they have agreed to.
    asked: Mutex<HashSet<(TenantId, ServerId)>>,
    /// Notified when there may be something to revoke.
    due: Notify,
}

/// The servers that tenants connect themselves to.
#[derive(Default)]
struct Servers {
    configured: HashMap<ServerId, ServerConfig>,
    /// Removed by a reload, as they were: their tokens are to be revoked.
    removed: HashMap<ServerId, ServerConfig>,
}

/// Returns the page at which a tenant connects itself to a server.
pub fn connect_url(public_url: &str, tenant: &TenantName, server: &ServerId) -> String {
    format!("{public_url}{CONNECT_PAGE}{server}?tenant={tenant}")
}

/// A tenant's connection, as it is shown.
pub struct ConnectionView {
    /// When the tenant has agreed, in milliseconds since 1970.
    pub connected: Option<i64>,
}

impl Connections {
    pub fn new(config: &Config, directory: Arc<Directory>) -> Self {
        let connections = Self {
            store: directory.store().clone(),
            directory,
            sealer: TokenSealer::new(&config.secrets.keys),
            public_url: config.public_url.clone(),
            servers: ArcSwap::default(),
            providers: Mutex::default(),
            asked: Mutex::default(),
            due: Notify::new(),
        };
        connections.set_servers(config);
        connections
    }

    /// Takes the servers of another configuration.
    pub fn set_servers(&self, config: &Config) {
        let before = self.servers.load_full();
        let wanted = config.servers.iter().filter(|(_, server)| server.needs_connection());
        let configured: HashMap<_, _> =
            wanted.map(|(id, server)| (id.clone(), server.clone())).collect();
        let mut removed = before.removed.clone();
        removed.extend(before.configured.clone());
        removed.retain(|id, _| !configured.contains_key(id));
        self.providers.lock().retain(|id, _| configured.contains_key(id));
        self.asked.lock().retain(|(_, id)| configured.contains_key(id));
        self.servers.store(Arc::new(Servers { configured, removed }));
        self.due.notify_one();
    }

    /// Returns whether a person of a tenant has to agree: for the first time, again, or to more.
    pub fn wants_consent(&self, tenant: &TenantId, server: &ServerId) -> bool {
        let vault = self.directory.secrets().vault();
        let is_connected = vault.sealed_set(tenant, server).is_some_and(|set| set.has(CONNECTION));
        !is_connected || self.asked.lock().contains(&(tenant.clone(), server.clone()))
    }

    fn note_asks(&self, tenant: &TenantId, server: &ServerId, asks: bool) {
        let (place, mut asked) = ((tenant.clone(), server.clone()), self.asked.lock());
        if !asks {
            asked.remove(&place);
        } else if asked.len() < ASKED_MAX {
            asked.insert(place);
        }
    }

    /// Returns the page at which a tenant connects itself to a server.
    pub fn connect_url(&self, tenant: &TenantId, server: &ServerId) -> String {
        connect_url(self.public_url.as_deref().unwrap_or_default(), tenant.name(), server)
    }

    /// Waits until a tenant is connected to a server, or until the deadline.
    pub async fn connected(&self, tenant: &TenantId, server: &ServerId, deadline: Instant) {
        let vault = self.directory.secrets().vault();
        let mut changed = vault.changed(tenant);
        let connected = async {
            while !vault.sealed_set(tenant, server).is_some_and(|set| set.has(CONNECTION)) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout_at(deadline.checked_sub(ANSWER_TIME).unwrap_or(deadline), connected).await;
    }

    /// Returns a tenant's connection to a server, if it has one.
    pub async fn view(
        &self,
        tenant: &TenantId,
        server: &ServerId,
    ) -> Result<ConnectionView, StoreError> {
        let stored = self.store.connection(tenant, server).await?;
        Ok(ConnectionView { connected: stored.map(|stored| stored.connected) })
    }

    /// Returns how tokens for a server are asked for; also of one that a reload has removed.
    async fn provider(&self, server: &ServerId) -> Result<Arc<Provider>, OAuthError> {
        let servers = self.servers.load_full();
        let found = servers.configured.get(server).or_else(|| servers.removed.get(server));
        let no_server = || OAuthError::new("no such server has `grant = \"authorization_code\"`");
        let found = found.ok_or_else(no_server)?;
        let config = found.oauth().ok_or_else(no_server)?.clone();
        let url = match &found.transport {
            Transport::Http(upstream) => Some(upstream.url.clone()),
            Transport::Stdio(_) => None,
        };
        if let Some(known) = self.providers.lock().get(server)
            && known.is_of(url.as_ref(), &config)
        {
            return Ok(known.clone());
        }
        // All CAs that the system trusts are read first.
        let made = spawn_blocking(move || Provider::new(url.as_ref(), &config));
        let made = made.await.map_err(|_| OAuthError::new("the gateway failed"))?;
        let made = made.map_err(|error| OAuthError::new(error.to_string()))?;
        let made = Arc::new(made);
        // One of a server that was removed is for few requests.
        if servers.configured.contains_key(server) {
            self.providers.lock().insert(server.clone(), made.clone());
        }
        Ok(made)
    }
}
