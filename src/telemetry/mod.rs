//! What an operator sees: [`logging`] for events, [`metrics`] for numbers, [`tools`] for those of
//! each tool.

pub mod logging;
pub mod metrics;
pub mod tools;
