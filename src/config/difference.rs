//! Changes between two configurations: by name, never by value.

use std::collections::BTreeMap;
use std::fmt;

use super::section::Settings;
use super::{Auth, Config};

/// Additions, changes and removals among things with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
    /// How many are the same in both.
    pub unchanged: usize,
}

impl Difference {
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

/// Settings beside servers, toolsets and tenants that change while the gateway runs.
pub(super) const RELOADED: [&str; 3] = ["drain_delay", "drain_timeout", "auth.anonymous_tenant"];

impl Config {
    /// Returns the settings that differ in `new`, beside servers, toolsets and tenants: those that
    /// change at once, and those that need a restart.
    pub fn changed_settings(&self, new: &Self) -> (Vec<String>, Vec<String>) {
        let tables = [
            ("auth", self.auth.changed(&new.auth)),
            ("store", self.store.changed(&new.store)),
            ("limits", self.limits.changed(&new.limits)),
            ("calls", self.calls.changed(&new.calls)),
            ("batch", self.batch.changed(&new.batch)),
            ("log", self.log.changed(&new.log)),
            // Shown as changes of the servers.
            ("defaults", vec![]),
            ("secrets", self.secrets.changed(&new.secrets)),
            ("tenants", vec![]),
            ("servers", vec![]),
            ("toolsets", vec![]),
        ];
        let mut keys: Vec<_> = self.changed(new).into_iter().map(str::to_owned).collect();
        keys.retain(|key| tables.iter().all(|(table, _)| table != key));
        for (table, changed) in tables {
            keys.extend(changed.into_iter().map(|key| format!("{table}.{key}")));
        }
        keys.into_iter().partition(|key| RELOADED.contains(&key.as_str()))
    }

    /// Returns this configuration with those settings of `new` that change while the gateway runs.
    pub fn renewed(&self, new: Self) -> Self {
        let anonymous_tenant = new.auth.anonymous_tenant;
        Self {
            drain_delay: new.drain_delay,
            drain_timeout: new.drain_timeout,
            auth: Auth { anonymous_tenant, ..self.auth.clone() },
            tenants: new.tenants,
            servers: new.servers,
            toolsets: new.toolsets,
            warnings: new.warnings,
            left_out: new.left_out,
            ..self.clone()
        }
    }
}
