//! Rewrites the arguments of a call: values that the toolset sets are added, and callers may give
//! neither them nor hidden ones. Tools without such arguments get theirs byte for byte.

use bytes::Bytes;

use super::ChangedTool;
use crate::config::ArgumentOverride;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::jsonrpc::framing::RawError;
use crate::protocol::jsonrpc::members::{MemberChange, Members, MembersError};

/// Names are cut in messages, so that no error echoes a large request.
const SHOWN_CHARS_MAX: usize = 64;

/// Why a caller's arguments cannot be sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    #[error("the tool has no argument `{0}` in this toolset: leave it out")]
    NotThere(String),
    /// Servers that ignore case would obey it.
    #[error("the argument `{0}` differs in case only from one that the toolset has not: rename it")]
    CaseVariant(String),
    #[error("the arguments: {0}")]
    Members(MembersError),
    #[error(transparent)]
    Raw(RawError),
}

impl ArgumentOverride {
    /// Returns whether callers neither see the argument nor may give it.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden || self.fixed.is_some()
    }
}

impl ChangedTool {
    /// Returns the arguments for the server.
    pub fn rewrite_arguments(&self, given: RawObject) -> Result<RawObject, ArgumentsError> {
        let hidden = || self.arguments.iter().filter(|(_, change)| change.is_hidden());
        if hidden().next().is_none() {
            return Ok(given);
        }
        let names: Vec<&str> = hidden().map(|(name, _)| name.as_str()).collect();
        // An object with a duplicate name is refused.
        let members = Members::of_caller(given.as_str()).map_err(ArgumentsError::Members)?;
        if let Some(name) = names.iter().find(|name| members.get(name).is_some()) {
            return Err(ArgumentsError::NotThere((*name).to_owned()));
        }
        if let Some(name) = members.case_variant(&names) {
            let name = name.chars().take(SHOWN_CHARS_MAX).collect();
            return Err(ArgumentsError::CaseVariant(name));
        }
        let fixed: Vec<(&str, String)> = hidden()
            .filter_map(|(name, change)| Some((name.as_str(), change.fixed.as_ref()?.to_string())))
            .collect();
        let add: Vec<(&str, &str)> =
            fixed.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let rewritten = members.rewrite(|_, _| MemberChange::Keep, &add);
        RawObject::parse(Bytes::from(rewritten)).map_err(ArgumentsError::Raw)
    }
}
