//! The three permits that a call holds while a server may be working on it.

use std::sync::Arc;

use crate::backend::instance::pool::InstancePermit;
use crate::backend::queue::SlotPermit;
use crate::tenants::limits::Admission;

/// The permits of one attempt at a call.
///
/// From the registration on the in-flight table owns them, not the caller. So a caller that hangs
/// up gives nothing back. The permits are dropped when the server answers, when the grace period of
/// an abandoned call ends, or when the connection is closed.
///
/// Fields are dropped in the order of their declaration. The slot comes last, because dropping it
/// wakes the next call in the queue, and that call needs what the other two give back.
pub struct CallPermits {
    /// Counts the call against its instance's limit.
    pub instance: InstancePermit,
    /// Counts the call against its tenant's limits. All attempts at a call share one admission.
    pub tenant: Arc<Admission>,
    /// Occupies one of the backend's slots.
    pub slot: SlotPermit,
}

#[cfg(test)]
impl CallPermits {
    /// Adds permits of an unlimited tenant and of an instance of its own to a slot.
    pub(crate) async fn for_test(slot: SlotPermit) -> Self {
        use crate::backend::RunState;
        use crate::backend::instance::pool::Load;
        use crate::common::ids::TenantId;
        use crate::common::policy::Policy;
        use crate::config::{Program, ServerConfig, Transport};
        use crate::tenants::limits::Limits;

        let limits = Limits::new(&TenantId::gateway(), &Policy::default(), None);
        let backend = crate::backend::testing::backend(ServerConfig::new(Transport::Stdio(
            Program::default(),
        )));
        let (ready, _peer) = crate::backend::testing::ready();
        backend.set_instance_state(0, RunState::Ready(ready), Some(&Load::new(1, false)));
        let now = tokio::time::Instant::now();
        Self {
            instance: backend.instance_permit(None, now).await.unwrap(),
            tenant: Arc::new(limits.admit_tenant().await.unwrap()),
            slot,
        }
    }
}
