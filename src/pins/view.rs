//! The state of the tools of pinned servers, as operators see it.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Definition, Held, Pin, diff};
use crate::common::ids::ServerId;

const NOT_KEPT: &str = "(the definition is too long to be kept, and cannot be shown)\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PinState {
    Approved,
    /// Changed since the approval, and held back.
    Held,
    /// Never approved, and held back.
    New,
    /// Approved, but the server no longer has it.
    Gone,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PinView<'a> {
    pub server: &'a str,
    pub tool: &'a str,
    pub state: PinState,
    pub hash: String,
    /// The time since which the tool has been in this state.
    pub since: Option<Timestamp>,
    /// The name of the approver.
    pub by: Option<&'a str>,
    /// Only for a held definition: the hash that was approved before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_hash: Option<String>,
    /// Only for a held definition: the difference from the approved one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

impl PinState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Held => "held",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }

    /// Returns whether calls are refused.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::New)
    }
}

/// Returns the held definitions, and the approved ones that no held one replaces, sorted by server
/// and tool.
pub fn views<'a>(pins: &'a [Pin], held: &'a [Held]) -> Vec<PinView<'a>> {
    let approved: BTreeMap<(&ServerId, &str), &Pin> =
        pins.iter().map(|pin| ((&pin.server, pin.definition.tool.as_str()), pin)).collect();
    let replaced: HashSet<(&ServerId, &str)> =
        held.iter().map(|held| (&held.server, held.definition.tool.as_str())).collect();
    let standing = approved.iter().filter(|(tool, _)| !replaced.contains(tool));
    let mut views: Vec<PinView<'a>> = standing.map(|(_, pin)| of_pin(pin)).collect();
    views.extend(held.iter().map(|held| {
        let before = approved.get(&(&held.server, held.definition.tool.as_str()));
        of_held(held, before.copied())
    }));
    views.sort_by(|one, other| {
        (one.server, one.tool, &one.hash).cmp(&(other.server, other.tool, &other.hash))
    });
    views
}

fn of_pin(pin: &Pin) -> PinView<'_> {
    let (state, since) = match pin.gone {
        Some(gone) => (PinState::Gone, gone),
        None => (PinState::Approved, pin.at),
    };
    PinView {
        server: pin.server.as_str(),
        tool: &pin.definition.tool,
        state,
        hash: pin.definition.hash.to_string(),
        since: Timestamp::from_millisecond(since).ok(),
        by: Some(&pin.by),
        approved_hash: None,
        diff: None,
    }
}

fn of_held<'a>(held: &'a Held, before: Option<&Pin>) -> PinView<'a> {
    let is_kept = |definition: &Definition| !definition.text.is_empty();
    let all_kept = is_kept(&held.definition) && before.is_none_or(|pin| is_kept(&pin.definition));
    let before_text = before.map_or("", |pin| &pin.definition.text);
    PinView {
        server: held.server.as_str(),
        tool: &held.definition.tool,
        state: if before.is_some() { PinState::Held } else { PinState::New },
        hash: held.definition.hash.to_string(),
        since: Timestamp::from_millisecond(held.since).ok(),
        by: None,
        approved_hash: before.map(|pin| pin.definition.hash.to_string()),
        diff: Some(match all_kept {
            true => diff(before_text, &held.definition.text),
            false => NOT_KEPT.to_owned(),
        }),
    }
}
