//! Servers that run as child processes: the process, its guard, its sandbox and its pipes.
//!
//! ```text
//! gateway ──┬── stdin ◀── writer                    (one task per connection)
//!           │
//!           └── guard ── confines ──▶ server        (the guard kills what the server leaves)
//!
//! server ── stdout ──▶ connection::reader
//!        └─ stderr ──▶ line_tail                    (the last lines, for the operator)
//! ```
//!
//! Guards and sandboxes need Linux. Elsewhere `unguarded.rs` is in the place of `keeper.rs`.

#[cfg(target_os = "linux")]
pub mod guard;
#[cfg_attr(not(target_os = "linux"), path = "unguarded.rs")]
mod keeper;
pub(crate) mod line_tail;
#[cfg(target_os = "linux")]
pub(crate) mod proc_table;
pub(crate) mod process;
pub mod sandbox;
pub(crate) mod token_file;
mod turns;
pub(crate) mod writer;
