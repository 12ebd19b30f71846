//! All tenants, and how the command line and the admin API show them and their keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::common::ids::{TenantGeneration, TenantName};
use crate::common::policy::Policy;
use crate::store::{FileTenant, KeyRecord, NewKey, StoredTenant};

/// The place where a tenant is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
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

pub type Known = BTreeMap<TenantName, KnownTenant>;

/// A tenant, wherever it is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTenant {
    pub source: Source,
    pub policy: Policy,
    /// `None` for a tenant of the file that no gateway has read yet.
    pub generation: Option<TenantGeneration>,
    /// In milliseconds since 1970, if it is known.
    pub since: Option<i64>,
}

#[derive(Serialize, JsonSchema)]
pub struct TenantView<'a> {
    id: &'a str,
    source: Source,
    /// When the tenant was added. Absent if it is older than generations, or built in.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(flatten)]
    policy: &'a Policy,
}

#[derive(Serialize, JsonSchema)]
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

/// Merges tenants of the file and of the store. The file's policy takes precedence; a tenant that
/// the store has, too, is the store's, under that policy. If callers without a key have the tenant
/// [`BUILT_IN`], it exists even where it is in neither; no other name does.
pub fn known(
    in_file: &BTreeMap<TenantName, Policy>,
    stored: &BTreeMap<TenantName, StoredTenant>,
    file_tenants: &BTreeMap<TenantName, FileTenant>,
    anonymous: Option<&TenantName>,
) -> Known {
    let mut known: Known = stored
        .iter()
        .map(|(name, tenant)| {
            let StoredTenant { generation, since, policy } = tenant.clone();
            let (generation, since) = (Some(generation), Some(since));
            (name.clone(), KnownTenant { source: Source::Store, policy, generation, since })
        })
        .collect();
    for (name, policy) in in_file {
        let (generation, since) = match known.get(name) {
            Some(stored) => (stored.generation, stored.since),
            None => {
                file_tenants.get(name).map_or((None, None), |it| (Some(it.generation), it.since))
            }
        };
        let policy = policy.clone();
        known.insert(name.clone(), KnownTenant { source: Source::File, policy, generation, since });
    }
    if let Some(name) = anonymous.filter(|name| name.as_str() == BUILT_IN) {
        known.entry(name.clone()).or_insert_with(|| KnownTenant {
            source: Source::Anonymous,
            policy: Policy::unlimited(),
            generation: Some(TenantGeneration::BUILT_IN),
            since: None,
        });
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
    pub fn of(id: &'a TenantName, tenant: &'a KnownTenant) -> Self {
        let KnownTenant { source, policy, since, .. } = tenant;
        let since = since.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Self { id: id.as_str(), source: *source, since, policy }
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
        let id = |text: &str| TenantName::parse(text).unwrap();
        let weighing = |weight| Policy { weight, ..Policy::new() };
        let in_file = BTreeMap::from([(id("a"), weighing(2))]);
        let stored = |number: i64, weight| StoredTenant {
            generation: TenantGeneration::from_number(number),
            since: number,
            policy: weighing(weight),
        };
        let stored = BTreeMap::from([(id("a"), stored(1, 3)), (id("b"), stored(2, 4))]);
        let sources = |anonymous: &str| {
            let known = known(&in_file, &stored, &BTreeMap::new(), Some(&id(anonymous)));
            let source = |(id, it): (TenantName, KnownTenant)| {
                (id.to_string(), it.source.as_str(), it.policy.weight)
            };
            known.into_iter().map(source).collect::<Vec<_>>()
        };
        let said = [("a".to_owned(), "file", 2), ("b".to_owned(), "store", 4)];
        assert_eq!(sources("a"), said);
        assert_eq!(sources("b"), said);
        assert_eq!(sources("local")[2], ("local".to_owned(), "anonymous", 1));
        assert_eq!(sources("locale"), said, "a name that nobody configured");
        assert_eq!(known(&in_file, &stored, &BTreeMap::new(), None).len(), 2);
    }

    #[test]
    fn a_name_has_one_generation_wherever_it_is_defined() {
        let name = TenantName::parse("local").unwrap();
        let in_file = BTreeMap::from([(name.clone(), Policy::new())]);
        let [first, second] = [1, 2].map(TenantGeneration::from_number);
        let stored = StoredTenant { generation: first, since: 1, policy: Policy::new() };
        let stored = BTreeMap::from([(name.clone(), stored)]);
        let file_tenant = FileTenant { generation: second, since: None };
        let file_tenants = BTreeMap::from([(name.clone(), file_tenant)]);
        let none = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let of = |in_file, stored, file_tenants| {
            known(in_file, stored, file_tenants, Some(&name))[&name].generation
        };
        assert_eq!(of(&in_file, &stored, &file_tenants), Some(first));
        assert_eq!(of(&in_file, &none.1, &file_tenants), Some(second));
        assert_eq!(of(&in_file, &none.1, &none.2), None, "no gateway has read it yet");
        assert_eq!(of(&none.0, &none.1, &none.2), Some(TenantGeneration::BUILT_IN));
        assert_eq!(of(&none.0, &none.1, &file_tenants), Some(TenantGeneration::BUILT_IN));
    }

    #[test]
    fn a_source_is_written_as_it_is_called() {
        for source in [Source::File, Source::Store, Source::Anonymous] {
            assert_eq!(serde_json::json!(source), source.as_str());
        }
    }
}
