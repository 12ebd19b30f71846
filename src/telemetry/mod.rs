//! What the gateway tells its operator: [`logging`] for events, [`metrics`] for numbers, those of
//! [`tools`] included.

pub mod logging;
pub mod metrics;
pub mod tools;
