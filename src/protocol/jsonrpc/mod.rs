//! JSON-RPC 2.0 as MCP uses it over a stream of lines. Pure: no I/O, no clock.
//!
//! Bodies (`params`, `result`, `error`) stay raw text: what one side wrote, the other side gets, byte
//! for byte. Only the envelope around them is looked at.
//!
//! - [`envelope`]: one line into one [`Message`]
//! - [`frame`]: one message into one line
//! - [`members`]: the members of one object, with their values left raw
//! - [`mod@rewrite`]: an object written anew, or copied with some members changed
//! - [`raw`]: JSON from outside, made safe to splice into a frame
//! - [`lines`]: a byte stream into lines, however it was cut
//! - [`id_scan`]: the id of an answer too long to keep

pub mod envelope;
pub mod frame;
pub mod id_scan;
pub mod lines;
pub mod members;
pub mod raw;
pub mod rewrite;

pub use envelope::{Malformed, Message, decode};
pub use frame::Frame;
pub use lines::{Line, LineSplitter};
pub use members::Members;
pub use raw::RawObject;
pub use rewrite::{Change, ObjectWriter, with_first_member};

/// The text is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a request.
pub const INVALID_REQUEST: i64 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The method exists, its parameters do not fit.
pub const INVALID_PARAMS: i64 = -32602;
/// The peer failed inside.
pub const INTERNAL_ERROR: i64 = -32603;
