//! Logs and metrics for the operator: [`logging`], [`metrics`], and [`tools`] for the metrics of
//! each tool.

mod log_writer;
pub mod logging;
pub mod metrics;
pub mod tools;
