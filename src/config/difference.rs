//! What is other in one configuration than in another: by name, never by value.

use std::collections::BTreeMap;
use std::fmt;

use super::{Auth, Config};

/// What came, went and changed among things with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Only in the new one.
    pub added: Vec<String>,
    /// In both, but not the same.
    pub changed: Vec<String>,
    /// Only in the old one.
    pub removed: Vec<String>,
    /// The same in both.
    pub unchanged: usize,
}

impl Difference {
    /// From `before` to `after`.
    pub fn between<K: Ord + fmt::Display, V: PartialEq>(
        before: &BTreeMap<K, V>,
        after: &BTreeMap<K, V>,
    ) -> Self {
        let removed = before.keys().filter(|name| !after.contains_key(name));
        let mut difference =
            Self { removed: removed.map(ToString::to_string).collect(), ..Self::default() };
        for (name, value) in after {
            match before.get(name) {
                None => difference.added.push(name.to_string()),
                Some(same) if same == value => difference.unchanged += 1,
                Some(_) => difference.changed.push(name.to_string()),
            }
        }
        difference
    }
}

/// `1 added (a), 2 removed (b, c), 3 unchanged`
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (names, what) in
            [(&self.added, "added"), (&self.changed, "changed"), (&self.removed, "removed")]
        {
            if !names.is_empty() {
                write!(f, "{} {what} ({}), ", names.len(), names.join(", "))?;
            }
        }
        write!(f, "{} unchanged", self.unchanged)
    }
}

impl Config {
    /// The settings that are others in `new` and cannot change while the gateway runs.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        // Every setting is named here: a new one has to be thought of.
        let Self {
            listen,
            ops_listen,
            allowed_origins,
            allowed_hosts,
            session_keys,
            header_timeout,
            drain_delay: _,
            drain_timeout: _,
            max_body,
            max_response,
            auth: Auth { anonymous_tenant: _, hash_key, oauth },
            store_url,
            shared_limits,
            replicas,
            secret_keys,
            tenants: _,
            servers: _,
            origin: _,
            warnings: _,
        } = self;
        let settings = [
            ("listen", *listen != new.listen),
            ("ops_listen", *ops_listen != new.ops_listen),
            ("allowed_origins", *allowed_origins != new.allowed_origins),
            ("allowed_hosts", *allowed_hosts != new.allowed_hosts),
            ("session_keys", *session_keys != new.session_keys),
            ("header_timeout", *header_timeout != new.header_timeout),
            ("max_body", *max_body != new.max_body),
            ("max_response", *max_response != new.max_response),
            ("auth.hash_key", *hash_key != new.auth.hash_key),
            ("auth.oauth", *oauth != new.auth.oauth),
            ("store.url", *store_url != new.store_url),
            ("limits.shared", *shared_limits != new.shared_limits),
            ("replicas", *replicas != new.replicas),
            ("secrets.keys", *secret_keys != new.secret_keys),
        ];
        settings.into_iter().filter(|(_, is_other)| *is_other).map(|(name, _)| name).collect()
    }

    /// The settings beside servers and tenants that are others in `new`, and change at once.
    pub fn changed_settings(&self, new: &Self) -> Vec<&'static str> {
        let settings = [
            ("drain_delay", self.drain_delay != new.drain_delay),
            ("drain_timeout", self.drain_timeout != new.drain_timeout),
            ("auth.anonymous_tenant", self.auth.anonymous_tenant != new.auth.anonymous_tenant),
        ];
        settings.into_iter().filter(|(_, is_other)| *is_other).map(|(name, _)| name).collect()
    }

    /// This one with what `new` says of all that can change while the gateway runs.
    pub fn renewed(&self, new: Self) -> Self {
        let anonymous_tenant = new.auth.anonymous_tenant;
        Self {
            drain_delay: new.drain_delay,
            drain_timeout: new.drain_timeout,
            auth: Auth { anonymous_tenant, ..self.auth.clone() },
            tenants: new.tenants,
            servers: new.servers,
            warnings: new.warnings,
            ..self.clone()
        }
    }
}
