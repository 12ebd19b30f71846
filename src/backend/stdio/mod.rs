//! Servers that are child processes: the process under its guard and sandbox, and its pipes.

pub mod guard;
pub(crate) mod proc_table;
pub(crate) mod process;
pub mod sandbox;
pub(crate) mod stderr;
pub(crate) mod writer;
