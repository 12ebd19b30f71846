//! Logs and metrics for the operator: [`logging`], [`metrics`], [`tools`] for the metrics of each
//! tool, and [`tasks`] for tasks that panic.

mod config_metrics;
mod log_writer;
pub mod logging;
pub mod metrics;
pub mod tasks;
pub mod tools;
