//! Reads a call's arguments one by one, so that each error can name its argument.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use crate::protocol::jsonrpc::framing::type_name;
use crate::protocol::jsonrpc::members::{Members, MembersError};
use crate::protocol::mcp::params::text_of;

#[derive(Debug)]
pub(super) struct Arguments<'a>(Members<'a>);

/// Says what is wrong with the arguments, and what would be right.
#[derive(Debug)]
pub(super) struct Misfit(pub(super) String);

impl<'a> Arguments<'a> {
    /// Reads an object with these members and no others.
    pub(super) fn read(
        raw: Option<&'a RawValue>,
        required: &[&str],
        optional: &[&str],
    ) -> Result<Self, Misfit> {
        let raw = raw.map_or("{}", RawValue::get);
        let members = Members::parse(raw).map_err(|error| match error {
            MembersError::Duplicate(name) => Misfit(format!("`{name}` is there twice")),
            _ => Misfit(must_be("arguments", "an object", raw)),
        })?;
        let mut known = required.iter().chain(optional);
        if let Some((key, _)) =
            members.iter().find(|(key, _)| !known.clone().any(|name| name == key))
        {
            let known: Vec<_> = known.map(|name| format!("`{name}`")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Misfit(format!("`{key}` is unknown; the known ones are: {known}")));
        }
        match known.find(|name| required.contains(*name) && members.get(name).is_none()) {
            Some(name) => Err(Misfit(format!("`{name}` is missing"))),
            None => Ok(Self(members)),
        }
    }

    pub(super) fn any(&self, name: &str) -> Result<&'a RawValue, Misfit> {
        self.0.get(name).ok_or_else(|| Misfit(format!("`{name}` is missing")))
    }

    pub(super) fn text(&self, name: &str) -> Result<Cow<'a, str>, Misfit> {
        let raw = self.any(name)?;
        text_of(raw).ok_or_else(|| Misfit(must_be(name, "a string of Unicode text", raw.get())))
    }

    pub(super) fn optional_text(&self, name: &str) -> Result<Option<Cow<'a, str>>, Misfit> {
        self.0.get(name).map(|_| self.text(name)).transpose()
    }

    /// Returns a whole number. JSON Schema counts `5.0` and `5e0` as such.
    pub(super) fn integer(&self, name: &str, range: RangeInclusive<u32>) -> Result<u32, Misfit> {
        let raw = self.any(name)?;
        let number = serde_json::from_str::<f64>(raw.get()).ok();
        let bounds = f64::from(*range.start())..=f64::from(*range.end());
        match number.filter(|number| number.fract() == 0.0 && bounds.contains(number)) {
            // The bounds ensure that it fits.
            Some(number) => Ok(number as u32),
            None => {
                let expected = format!("an integer from {} to {}", range.start(), range.end());
                Err(Misfit(must_be(name, &expected, raw.get())))
            }
        }
    }
}

fn must_be(name: &str, expected: &str, found: &str) -> String {
    // A number is short and says more than its type.
    let found = if type_name(found) == "a number" { found } else { type_name(found) };
    format!("`{name}` must be {expected}, and it is {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Arguments<'_>, Misfit> {
        let raw = serde_json::from_str(text).unwrap();
        Arguments::read(Some(raw), &["text"], &["ms"])
    }

    #[test]
    fn errors_name_the_argument_and_what_it_should_be() {
        for (text, complaint) in [
            ("[]", "`arguments` must be an object, and it is an array"),
            ("{}", "`text` is missing"),
            (r#"{"text":"a","x":1}"#, "`x` is unknown; the known ones are: `text`, `ms`"),
            (r#"{"text":"a","text":"b"}"#, "`text` is there twice"),
        ] {
            assert_eq!(read(text).unwrap_err().0, complaint);
        }
        let arguments = read(r#"{"text":null,"ms":"5"}"#).unwrap();
        assert_eq!(
            arguments.text("text").unwrap_err().0,
            "`text` must be a string of Unicode text, and it is null"
        );
        assert_eq!(
            arguments.integer("ms", 0..=9).unwrap_err().0,
            "`ms` must be an integer from 0 to 9, and it is a string"
        );
    }

    #[test]
    fn integers_may_be_written_in_any_way_but_must_be_whole_and_in_range() {
        for (written, value) in [("0", 0), ("9", 9), ("5.0", 5), ("5e0", 5), ("-0", 0)] {
            let line = format!(r#"{{"text":"","ms":{written}}}"#);
            assert_eq!(read(&line).unwrap().integer("ms", 0..=9).unwrap(), value);
        }
        for written in ["10", "-1", "0.5", "1e400", "true", "[1]"] {
            let line = format!(r#"{{"text":"","ms":{written}}}"#);
            assert!(read(&line).unwrap().integer("ms", 0..=9).is_err(), "{written}");
        }
    }
}
