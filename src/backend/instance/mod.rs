//! One instance of a backend: how it starts, what it offers, how busy it is; and the pool of them.

pub mod adaptive;
pub(crate) mod handshake;
pub(crate) mod load;
pub(crate) mod measured;
pub mod pins;
pub mod pool;
pub(crate) mod redaction;
pub mod run;
pub mod start_error;
pub(crate) mod status;
pub mod tools;
