//! JSON-RPC 2.0 as MCP uses it over a stream of lines. Pure: no I/O, no clock.
//!
//! Bodies (`params`, `result`, `error`) stay raw text and are forwarded byte for byte. Only the
//! envelope around them is parsed.
//!
//! - [`envelope`]: decodes one line into one [`Message`]
//! - [`framing`]: one message is one line: written, split off a stream, safe from JSON of outside
//! - [`members`]: reads the members of one object, with raw values, and writes them with changes
//! - [`id_scan`]: finds the id of an answer that is too long to keep
//! - [`text`]: a string that is passed on as it was written
//! - [`mod@spans`], [`mod@pointer`]: find parts of JSON text by position, and by JSON Pointer

pub mod envelope;
pub mod framing;
pub mod id_scan;
pub mod members;
pub mod pointer;
pub mod spans;
pub mod text;

pub use envelope::{Malformed, Message, decode};
pub use framing::{Frame, Line, LineSplitter, RawObject};
pub use members::{MemberChange, Members, ObjectWriter, with_first_member};
pub use text::JsonText;

/// The longest id of a request that is echoed. A longer one is an attack on our memory.
pub const ID_LEN_MAX: usize = 1024;

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
