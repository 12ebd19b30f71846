//! The tokens of a connection, and how they are sealed in the store.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::AccessToken;
use crate::common::ids::{ServerId, TenantId};
use crate::common::seal::{Purpose, Sealer};
use crate::common::secret::Secret;
use crate::oauth::client::KnownClient;
use crate::oauth::discovery::AuthorizationServer;
use crate::oauth::request::Tokens;
use crate::tenants::secrets::Resealed;

/// Separates these keys from other uses of the same secret.
const KEY_LABEL: &[u8] = b"trunkline connections 1\0";

/// The tokens that an authorization server has given for a tenant.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) access: String,
    pub(super) refresh: Option<String>,
    /// In milliseconds since 1970.
    pub(super) obtained: i64,
    /// In milliseconds; `None` if the authorization server did not say.
    pub(super) life: Option<i64>,
    /// The scopes that the tenant was asked for.
    pub(super) requested: Vec<String>,
    /// The one that gave the tokens: no other ever gets them.
    pub(super) server: AuthorizationServer,
    /// As whom the gateway asked; `None` if the operator has configured that.
    pub(super) client: Option<KnownClient>,
}

impl Held {
    /// Takes new tokens. An authorization server may leave the refresh token as it is.
    pub(super) fn renewed(&self, tokens: Tokens) -> Self {
        let milliseconds = |life: Duration| i64::try_from(life.as_millis()).unwrap_or(i64::MAX);
        let age = milliseconds(tokens.asked.elapsed());
        Self {
            access: tokens.access.expose().to_owned(),
            refresh: match tokens.refresh {
                Some(refresh) => Some(refresh.expose().to_owned()),
                None => self.refresh.clone(),
            },
            obtained: Timestamp::now().as_millisecond() - age,
            life: tokens.life.map(milliseconds),
            ..self.clone()
        }
    }

    /// Returns whether the tenant was not asked for some of these scopes, a space between each.
    pub(super) fn lacks_any(&self, scopes: &str) -> bool {
        let mut scopes = scopes.split(' ').filter(|it| !it.is_empty());
        scopes.any(|scope| !self.requested.iter().any(|it| it == scope))
    }

    pub(super) fn access_token(&self, version: i64) -> AccessToken {
        let age = Timestamp::now().as_millisecond().saturating_sub(self.obtained).max(0);
        let age = Duration::from_millis(age.unsigned_abs());
        let now = Instant::now();
        let life = self.life.map(|life| Duration::from_millis(life.max(0).unsigned_abs()));
        // A machine may have run for less than the token has lived.
        let (obtained, life) = match now.checked_sub(age) {
            Some(obtained) => (obtained, life),
            None => (now, life.map(|life| life.saturating_sub(age))),
        };
        AccessToken { secret: Secret::new(self.access.clone()), obtained, life, version }
    }
}

/// Seals tokens, bound to tenant, generation and server; and what belongs to them.
pub(super) struct TokenSealer(Option<Sealer>);

impl TokenSealer {
    pub(super) fn new(keys: &[Secret]) -> Self {
        Self((!keys.is_empty()).then(|| Sealer::labelled(KEY_LABEL, keys)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Seals plain data. `None` without keys.
    pub(super) fn seal(
        &self,
        purpose: Purpose,
        context: &[u8],
        plain: &impl Serialize,
    ) -> Option<String> {
        let plain = serde_json::to_vec(plain).expect("plain data");
        Some(self.0.as_ref()?.seal(purpose, context, &plain))
    }

    pub(super) fn open<T: for<'de> Deserialize<'de>>(
        &self,
        purpose: Purpose,
        context: &[u8],
        sealed: &str,
    ) -> Option<T> {
        let plain = self.0.as_ref()?.open(purpose, context, sealed)?;
        serde_json::from_slice(&plain).ok()
    }

    fn reseal(&self, context: &[u8], sealed: &str) -> Resealed {
        let Some(sealer) = &self.0 else { return Resealed::Unreadable };
        match sealer.open_by(Purpose::Connection, context, sealed) {
            None => Resealed::Unreadable,
            Some((0, _)) => Resealed::Already,
            Some((_, plain)) => Resealed::Anew(sealer.seal(Purpose::Connection, context, &plain)),
        }
    }
}

/// Seals the tokens of connections with the first key again.
pub struct ConnectionKeyring(TokenSealer);

impl ConnectionKeyring {
    pub fn new(keys: &[Secret]) -> Self {
        Self(TokenSealer::new(keys))
    }

    pub fn reseal(&self, tenant: &TenantId, server: &ServerId, sealed: &str) -> Resealed {
        self.0.reseal(&of_connection(tenant, server), sealed)
    }
}

/// Binds sealed tokens. No part can contain a zero byte.
pub(super) fn of_connection(tenant: &TenantId, server: &ServerId) -> Vec<u8> {
    let generation = tenant.generation();
    format!("{}\0{generation}\0{server}", tenant.name()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_open_for_their_tenant_and_server_alone() {
        let keys = |texts: &[&str]| -> Vec<Secret> {
            texts.iter().map(|text| Secret::new((*text).to_owned())).collect()
        };
        let sealer = TokenSealer::new(&keys(&["old"]));
        let [acme, other] = ["acme", "other"].map(TenantId::testing);
        let [one, two] = ["one", "two"].map(|id| ServerId::parse(id).unwrap());
        let context = of_connection(&acme, &one);
        let sealed = sealer.seal(Purpose::Connection, &context, &"token-1").unwrap();
        assert!(!sealed.contains("token"));
        let open = |tenant, server| {
            sealer.open::<String>(Purpose::Connection, &of_connection(tenant, server), &sealed)
        };
        assert_eq!(open(&acme, &one).as_deref(), Some("token-1"));
        assert_eq!((open(&other, &one), open(&acme, &two)), (None, None));
        let both = ConnectionKeyring::new(&keys(&["new", "old"]));
        let Resealed::Anew(anew) = both.reseal(&acme, &one, &sealed) else { panic!() };
        assert_eq!(both.reseal(&acme, &one, &anew), Resealed::Already);
        assert_eq!(both.reseal(&other, &one, &anew), Resealed::Unreadable);
    }
}
