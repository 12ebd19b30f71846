//! What a tool's definition is when it is compared, hashed and shown: pure, without servers or a store.
//!
//! - `canonical`: the form in which definitions are compared, and its hash
//! - `lines`: a definition over several lines, safe to print
//! - `diff`: what is different in another one
//! - `view`: how all of it stands, for operators

mod canonical;
mod diff;
mod lines;
mod view;

use crate::common::ids::ServerId;

pub use self::canonical::{Hash, canonical};
pub use self::diff::diff;
pub use self::lines::printable;
pub use self::view::{PinView, State, views};

/// The longest definition whose text is kept. What is longer is known by its hash alone.
const TEXT_LEN_MAX: usize = 64 * 1024;
/// What is kept of the definitions that are written down together, in bytes.
const TEXTS_LEN_MAX: usize = 2 * 1024 * 1024;

/// A definition that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Of which tool.
    pub tool: String,
    /// What it is known by.
    pub hash: Hash,
    /// Its canonical form; empty if that is too long to be kept.
    pub text: String,
}

/// A definition that was approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Whose it is.
    pub server: ServerId,
    /// What was approved.
    pub definition: Definition,
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// By whom.
    pub by: String,
    /// Since when the server has no tool of that name, if it has none.
    pub gone: Option<i64>,
}

/// A definition that is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whose it is.
    pub server: ServerId,
    /// What it is now.
    pub definition: Definition,
    /// Since when, in milliseconds since 1970.
    pub since: i64,
}

/// The same definitions, without texts that are too long to be kept, or too many.
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
