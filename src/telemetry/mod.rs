//! Logs and metrics for the operator: [`logging`], [`metrics`], [`tools`] and [`tenants`] for the
//! metrics of each, `process` and `readings` for those that are read when asked for, and [`tasks`]
//! for tasks that panic.

mod json_lines;
mod log_writer;
pub mod logging;
mod metric_groups;
pub mod metrics;
mod process;
mod readings;
pub mod tasks;
pub mod tenants;
pub mod tools;
pub mod version;
