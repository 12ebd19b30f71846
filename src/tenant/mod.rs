//! Tenants: whoever calls belongs to one, and what it may do is the tenant's.

use crate::ids::TenantId;
use crate::policy::Policy;

/// One tenant, as of now: a change of its policy makes another one.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// What it may do.
    pub policy: Policy,
}

impl Tenant {
    /// A tenant that may do this.
    pub fn new(id: TenantId, policy: Policy) -> Self {
        Self { id, policy }
    }

    /// Whether a server is there for it. What it may not use is for a tenant as if it did not exist.
    pub fn sees(&self, server: &str) -> bool {
        self.policy.servers.sees(server)
    }

    /// Whether it may call a tool.
    pub fn may_call(&self, server: &str, tool: &str) -> bool {
        self.policy.servers.has_tool(server, tool)
    }

    /// Whether it may use what a server has beside tools: prompts, resources and the like.
    pub fn may_use_all_of(&self, server: &str) -> bool {
        self.policy.servers.has_all_of(server)
    }
}
