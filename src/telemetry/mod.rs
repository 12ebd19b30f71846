//! What the gateway tells its operator: [`logging`] for events, [`metrics`] for numbers.

pub mod logging;
pub mod metrics;
