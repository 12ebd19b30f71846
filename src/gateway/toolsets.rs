//! Toolsets, as callers may use them.

use std::sync::Arc;

use super::{CallError, Caller, Gateway};
use crate::tenants::Tenant;
use crate::toolsets::error::ToolsetError;
use crate::toolsets::{Toolset, Toolsets};

impl Gateway {
    /// Returns all toolsets, without asking who may use them.
    pub fn all_toolsets(&self) -> &Toolsets {
        &self.toolsets
    }

    /// Returns the toolsets that the caller may use.
    pub fn toolsets(&self, caller: &Caller) -> impl Iterator<Item = Arc<Toolset>> {
        let toolsets = self.toolsets.all().into_iter();
        toolsets.filter(|toolset| caller.tenant.has_toolset(toolset.id().as_str()))
    }

    /// Returns the caller within a toolset. A toolset that the caller may not use does not exist
    /// for it.
    pub fn within(&self, caller: Caller, toolset: &str) -> Result<Caller, CallError> {
        let found = self.toolsets.get(toolset).filter(|_| caller.tenant.has_toolset(toolset));
        let not_found = || ToolsetError::NotFound { toolset: toolset.to_owned() };
        Ok(Caller { toolset: Some(found.ok_or_else(not_found)?), ..caller })
    }

    /// Returns whether a tenant may use a server, or tools of it through a toolset.
    pub fn is_used_by(&self, tenant: &Tenant, server: &str) -> bool {
        let uses =
            |it: &Arc<Toolset>| it.has_part_of(server) && tenant.has_toolset(it.id().as_str());
        tenant.sees(server) || self.toolsets.all().iter().any(uses)
    }
}
