//! Logs and metrics for the operator: [`logging`], [`metrics`], [`tools`] for the metrics of each
//! tool, and [`tasks`] for tasks that panic.

mod log_writer;
pub mod logging;
mod metric_groups;
pub mod metrics;
pub mod tasks;
pub mod tools;
