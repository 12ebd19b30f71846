//! Compares, hashes and shows tool definitions. Pure: no servers, no store.
//!
//! - `canonical`: the canonical form of a definition, and its hash
//! - `lines`: splits a definition into lines that are safe to print
//! - `diff`: the difference between two definitions
//! - `view`: the state of all definitions, for operators

mod canonical;
mod diff;
mod lines;
mod view;

use crate::common::ids::ServerId;

pub use self::canonical::{Hash, canonical};
pub use self::diff::diff;
pub use self::lines::printable;
pub use self::view::{PinState, PinView, views};

/// The longest definition whose text is kept. Of a longer one only the hash is kept.
const TEXT_LEN_MAX: usize = 64 * 1024;
/// Bytes of text that are kept of all definitions in one record.
const TEXTS_LEN_MAX: usize = 2 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub tool: String,
    pub hash: Hash,
    /// The canonical form; empty if it is too long to be kept.
    pub text: String,
}

/// An approved definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub server: ServerId,
    pub definition: Definition,
    /// The time of the approval, in milliseconds since 1970.
    pub at: i64,
    /// The name of the approver.
    pub by: String,
    /// The time since which the server has had no tool of that name.
    pub gone: Option<i64>,
}

/// A definition that is held back until it is approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub server: ServerId,
    pub definition: Definition,
    /// In milliseconds since 1970.
    pub since: i64,
}

/// Clears the texts that exceed the limit for one definition or for all together.
pub fn within_bounds(definitions: impl Iterator<Item = Definition>) -> Vec<Definition> {
    let mut left = TEXTS_LEN_MAX;
    let bounded = definitions.map(|definition| {
        let len = definition.text.len();
        if len > TEXT_LEN_MAX.min(left) {
            return Definition { text: String::new(), ..definition };
        }
        left -= len;
        definition
    });
    bounded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_within_bounds() {
        let definition = |len: usize| {
            let text = "x".repeat(len);
            Definition { tool: "t".into(), hash: Hash::of(&text), text }
        };
        let given = [TEXT_LEN_MAX, TEXT_LEN_MAX + 1, 1].map(definition);
        let kept = within_bounds(given.clone().into_iter());
        assert_eq!((&kept[0], &kept[2]), (&given[0], &given[2]));
        assert_eq!((kept[1].hash, kept[1].text.as_str()), (given[1].hash, ""));

        let many = within_bounds((0..100).map(|_| definition(TEXT_LEN_MAX)));
        let total: usize = many.iter().map(|it| it.text.len()).sum();
        assert_eq!((many.len(), total), (100, TEXTS_LEN_MAX));
    }
}
