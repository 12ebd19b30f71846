//! Ids, parsed once at the edge and trusted afterwards.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::{NoContext, Timestamp, Uuid};

/// Short enough that `server__tool` stays within the length that clients accept.
const SERVER_ID_LEN_MAX: usize = 32;
const TENANT_ID_LEN_MAX: usize = 64;

/// Names one configured server. Part of URLs and of metric labels.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

/// Names a toolset of the configuration.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolsetId(Arc<str>);

/// A tenant's name, as operators write it. A name outlives its tenant: whoever gets the name next
/// is somebody else. Maps that outlive a tenant have [`TenantId`] as their key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantName(Arc<str>);

/// Tells tenants apart that have one name, one after the other. Random, so that none comes twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantGeneration(i64);

/// One tenant, from the moment that it is added until it is removed. Shown as its name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId {
    name: TenantName,
    generation: TenantGeneration,
}

/// Names one session of a legacy MCP client.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Uuid);

/// Names one call, for callers, logs and the identity check. Never sent to a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId(Uuid);

#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is not a valid {kind} id: use 1 to {len_max} characters of A-Z, a-z, 0-9, `-` and \
     `_`, starting with a letter or digit{extra}"
)]
pub struct InvalidId {
    kind: &'static str,
    text: String,
    len_max: usize,
    extra: &'static str,
}

impl ServerId {
    /// Reserves `__`, which separates server and tool in MCP tool names. The first one must be the
    /// separator, so an id may not end in `_` either.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        if is_plain_name(text, SERVER_ID_LEN_MAX) && !text.contains("__") && !text.ends_with('_') {
            return Ok(Self(text.into()));
        }
        let (text, extra) = (text.to_owned(), ", without `__`, not ending in `_`");
        Err(InvalidId { kind: "server", text, len_max: SERVER_ID_LEN_MAX, extra })
    }
}

impl ToolsetId {
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        if is_plain_name(text, SERVER_ID_LEN_MAX) {
            return Ok(Self(text.into()));
        }
        let text = text.to_owned();
        Err(InvalidId { kind: "toolset", text, len_max: SERVER_ID_LEN_MAX, extra: "" })
    }
}

impl TenantName {
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        if is_plain_name(text, TENANT_ID_LEN_MAX) {
            return Ok(Self(text.into()));
        }
        let text = text.to_owned();
        Err(InvalidId { kind: "tenant", text, len_max: TENANT_ID_LEN_MAX, extra: "" })
    }

    /// Returns the tenant of this name and this generation.
    pub fn of(self, generation: TenantGeneration) -> TenantId {
        TenantId { name: self, generation }
    }
}

impl TenantGeneration {
    /// The built-in tenant, which is nowhere added or removed. No other tenant has it.
    pub const BUILT_IN: Self = Self(0);

    pub fn generate() -> Self {
        Self(rand::random_range(1..=i64::MAX))
    }

    /// Returns the generation with this number in the store.
    pub fn from_number(number: i64) -> Self {
        Self(number)
    }

    pub fn number(self) -> i64 {
        self.0
    }
}

impl TenantId {
    /// The gateway, for its own requests to a backend (handshake, tool lists). No tenant can have
    /// this id: `TenantName::parse` refuses the leading underscore.
    pub fn gateway() -> Self {
        TenantName("_gateway".into()).of(TenantGeneration::BUILT_IN)
    }

    pub fn name(&self) -> &TenantName {
        &self.name
    }

    pub fn generation(&self) -> TenantGeneration {
        self.generation
    }

    /// Returns name and generation as one text, for keys and seals. No two tenants have the same.
    pub fn unique_text(&self) -> String {
        format!("{}@{}", self.name, self.generation)
    }

    /// Returns a tenant for a test.
    #[cfg(test)]
    pub fn testing(name: &str) -> Self {
        TenantName::parse(name).expect("a name").of(TenantGeneration::from_number(1))
    }
}

impl CallId {
    /// Returns an id that is unique over all replicas and sortable by time.
    pub fn generate() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Without the counter that orders ids within a millisecond: its lock is shared by all
        // calls.
        Self(Uuid::new_v7(Timestamp::from_unix(NoContext, now.as_secs(), now.subsec_nanos())))
    }

    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }

    /// Returns when the id was made: at the arrival of the call.
    pub fn made(&self) -> SystemTime {
        let (seconds, nanos) = self.0.get_timestamp().map_or((0, 0), |time| time.to_unix());
        UNIX_EPOCH + Duration::new(seconds, nanos)
    }

    /// Spreads ids evenly.
    pub fn last_byte(&self) -> u8 {
        self.0.as_bytes()[15]
    }
}

impl SessionId {
    /// Returns an id that cannot be guessed.
    pub fn generate() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns enough of the id for logs, too little to guess the rest.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

fn is_plain_name(text: &str, len_max: usize) -> bool {
    text.len() <= len_max
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Shows a type as a text, in debug output too.
macro_rules! formatted {
    ($type:ident, $id:ident => $text:expr) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $id = self;
                std::fmt::Display::fmt(&$text, f)
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(super) use formatted;

formatted!(CallId, id => id.0.simple());
formatted!(SessionId, id => id.0.simple());
formatted!(ServerId, id => id.0);
formatted!(ToolsetId, id => id.0);
formatted!(TenantName, id => id.0);
formatted!(TenantGeneration, id => format_args!("{:016x}", id.0));
formatted!(TenantId, id => id.name);

macro_rules! text_id {
    ($type:ident) => {
        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Allows a lookup by `&str` in maps that are keyed by the id.
        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id!(ServerId);
text_id!(ToolsetId);
text_id!(TenantName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_ids_keep_the_separator_free() {
        assert!(ServerId::parse("std").is_ok());
        assert!(ServerId::parse("brave-search_2").is_ok());
        for bad in ["", "a__b", "a_", "_x", "-x", "a b", "a/b", "ü", &"x".repeat(33)] {
            assert!(ServerId::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn no_tenant_can_call_itself_the_gateway() {
        assert!(TenantName::parse(TenantId::gateway().name().as_str()).is_err());
    }

    #[test]
    fn an_invalid_id_says_what_is_allowed() {
        let message = ServerId::parse("my server").unwrap_err().to_string();
        assert!(message.contains("`my server`") && message.contains("A-Z"), "{message}");
        assert!(message.ends_with("without `__`, not ending in `_`"), "{message}");
    }
}
