//! One instance of a backend: its start, its tools, its load; and the pool of them.

pub mod adaptive;
pub mod arguments;
mod endpoint;
pub(crate) mod handshake;
pub mod left_out;
mod list_error;
pub mod pins;
pub mod pool;
pub(crate) mod redaction;
pub mod run;
pub mod skills;
pub mod start_error;
mod start_hints;
pub(crate) mod status;
pub mod tools;
mod uses;
