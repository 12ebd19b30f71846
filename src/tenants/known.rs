//! All tenants, and how the command line and the admin API show them and their keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::common::ids::TenantId;
use crate::common::policy::Policy;
use crate::store::{KeyRecord, NewKey};

/// The place where a tenant is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Only the configuration file can change it.
    File,
    Store,
    /// Nowhere: [`BUILT_IN`], the tenant of callers without a key, without limits.
    Anonymous,
}

/// The one tenant that callers without a key have without being configured.
pub const BUILT_IN: &str = "local";

pub type Known = BTreeMap<TenantId, (Source, Policy)>;

#[derive(Serialize)]
pub struct TenantView<'a> {
    id: &'a str,
    source: Source,
    #[serde(flatten)]
    policy: &'a Policy,
}

#[derive(Serialize)]
pub struct KeyView<'a> {
    id: &'a str,
    name: Option<&'a str>,
    state: &'static str,
    created: Option<Timestamp>,
    expires: Option<Timestamp>,
    revoked: Option<Timestamp>,
    last_used: Option<Timestamp>,
    /// The whole key, for a new one only.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// Merges tenants of the file and of the store. The file takes precedence. If callers without a key
/// have the tenant [`BUILT_IN`], it exists even where it is in neither; no other name does.
pub fn known(
    in_file: &BTreeMap<TenantId, Policy>,
    stored: BTreeMap<TenantId, Policy>,
    anonymous: Option<&TenantId>,
) -> Known {
    let stored = stored.into_iter().map(|(id, policy)| (id, (Source::Store, policy)));
    let in_file = in_file.iter().map(|(id, policy)| (id.clone(), (Source::File, policy.clone())));
    let mut known: Known = stored.chain(in_file).collect();
    if let Some(id) = anonymous.filter(|id| id.as_str() == BUILT_IN) {
        let unlimited = || (Source::Anonymous, Policy::unlimited());
        known.entry(id.clone()).or_insert_with(unlimited);
    }
    known
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Store => "store",
            Self::Anonymous => "anonymous",
        }
    }
}

impl<'a> TenantView<'a> {
    pub fn of(id: &'a TenantId, source: Source, policy: &'a Policy) -> Self {
        Self { id: id.as_str(), source, policy }
    }
}

impl<'a> KeyView<'a> {
    pub fn of(record: &'a KeyRecord) -> Self {
        let time = |ms: Option<i64>| ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Self {
            id: record.id.as_str(),
            name: record.name.as_deref(),
            state: record.state(Timestamp::now().as_millisecond()).as_str(),
            created: time(Some(record.created)),
            expires: time(record.expires),
            revoked: time(record.revoked),
            last_used: time(record.last_used),
            key: None,
        }
    }

    /// Shows a new key, once.
    pub fn of_new(new: &'a NewKey) -> Self {
        Self { key: Some(new.key.expose()), ..Self::of(&new.record) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_takes_precedence_and_one_anonymous_tenant_is_built_in() {
        let id = |text: &str| TenantId::parse(text).unwrap();
        let weighing = |weight| Policy { weight, ..Policy::new() };
        let in_file = BTreeMap::from([(id("a"), weighing(2))]);
        let stored = BTreeMap::from([(id("a"), weighing(3)), (id("b"), weighing(4))]);
        let sources = |anonymous: &str| {
            let known = known(&in_file, stored.clone(), Some(&id(anonymous)));
            let source = |(id, (source, policy)): (TenantId, (Source, Policy))| {
                (id.to_string(), source.as_str(), policy.weight)
            };
            known.into_iter().map(source).collect::<Vec<_>>()
        };
        let said = [("a".to_owned(), "file", 2), ("b".to_owned(), "store", 4)];
        assert_eq!(sources("a"), said);
        assert_eq!(sources("b"), said);
        assert_eq!(sources("local")[2], ("local".to_owned(), "anonymous", 1));
        assert_eq!(sources("locale"), said, "a name that nobody configured");
        assert_eq!(known(&in_file, stored, None).len(), 2);
    }

    #[test]
    fn a_source_is_written_as_it_is_called() {
        for source in [Source::File, Source::Store, Source::Anonymous] {
            assert_eq!(serde_json::json!(source), source.as_str());
        }
    }
}
