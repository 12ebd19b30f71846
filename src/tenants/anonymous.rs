//! Access without a key: the tenant that it has, and when it closes.
//!
//! A tenant that was configured limits its callers. So when that tenant is removed, its callers
//! are refused; they never become callers without limits.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Tenant;
use super::known::Source;
use crate::common::ids::TenantName;

/// Whether callers without a key are served, at one moment.
#[derive(Default)]
pub(super) enum AnonymousAccess {
    /// Every request needs a key.
    #[default]
    Off,
    Open {
        access: Arc<Anonymous>,
        /// The place where its policy is defined.
        source: Source,
        /// Whether the store has the tenant, too: then it does not end with its table in the file.
        is_stored: bool,
    },
    /// The configured tenant does not exist.
    Closed(UnknownTenant),
}

/// The access of callers without a key.
pub struct Anonymous {
    pub tenant: Arc<Tenant>,
    /// Cancelled when the access closes or its tenant changes: streams that it opened end then.
    pub gone: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`auth.anonymous_tenant` names the tenant `{0}`, which does not exist: add it by `trunkline \
     tenant add {0}` or as `[tenants.{0}]`, or remove `anonymous_tenant` so that every request \
     needs a key"
)]
pub struct UnknownTenant(TenantName);

impl AnonymousAccess {
    /// Returns the access to the tenant `id` among `tenants`, and ends the access of before if that
    /// was another.
    pub(super) fn next(
        &self,
        id: Option<&TenantName>,
        tenants: &HashMap<TenantName, Arc<Tenant>>,
        source: Source,
        is_stored: bool,
    ) -> Self {
        let tenant = id.and_then(|id| tenants.get(id));
        if let (Self::Open { access, .. }, Some(tenant)) = (self, tenant)
            && Arc::ptr_eq(&access.tenant, tenant)
            && !access.gone.is_cancelled()
        {
            return Self::Open { access: access.clone(), source, is_stored };
        }
        self.end();
        match (id, tenant) {
            (None, _) => Self::Off,
            (Some(_), Some(tenant)) => {
                let (tenant, gone) = (tenant.clone(), CancellationToken::new());
                Self::Open { access: Arc::new(Anonymous { tenant, gone }), source, is_stored }
            }
            (Some(id), None) => Self::Closed(UnknownTenant(id.clone())),
        }
    }

    /// Ends the streams of callers without a key.
    pub(super) fn end(&self) {
        if let Self::Open { access, .. } = self {
            access.gone.cancel();
        }
    }

    /// Warns if access is closed, unless it was for the same reason before.
    pub(super) fn warn_if_closed(&self, before: &Self) {
        if let Self::Closed(unknown) = self
            && !matches!(before, Self::Closed(same) if same == unknown)
        {
            tracing::warn!("callers without a key are refused: {unknown}");
        }
    }
}
