//! A JSON string that is passed on as it was written.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The text of a JSON string. JSON allows escapes of half a surrogate pair (`"\ud800"`), which no
/// text can hold. Such a string is kept as it was written beside its text, where each is `U+FFFD`.
#[derive(Clone, Debug)]
pub struct JsonText(Kind);

/// Most texts say it all, so the other kind is kept elsewhere.
#[derive(Clone, Debug)]
enum Kind {
    Whole(String),
    Written(Box<(String, Box<RawValue>)>),
}

impl Default for JsonText {
    fn default() -> Self {
        String::new().into()
    }
}

impl From<String> for JsonText {
    fn from(text: String) -> Self {
        Self(Kind::Whole(text))
    }
}

impl From<&str> for JsonText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<JsonText> for String {
    fn from(text: JsonText) -> Self {
        match text.0 {
            Kind::Whole(text) => text,
            Kind::Written(written) => written.0,
        }
    }
}

impl Deref for JsonText {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Kind::Whole(text) => text,
            Kind::Written(written) => &written.0,
        }
    }
}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Whole(text), Kind::Whole(other)) => text == other,
            (Kind::Written(it), Kind::Written(other)) => it.1.get() == other.1.get(),
            _ => false,
        }
    }
}

impl Eq for JsonText {}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Kind::Whole(text) => text.serialize(serializer),
            Kind::Written(written) => written.1.serialize(serializer),
        }
    }
}

/// Reads a string of a JSON text. Other formats are not supported.
impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = <&RawValue>::deserialize(deserializer)?;
        if let Ok(text) = serde_json::from_str::<String>(written.get()) {
            return Ok(text.into());
        }
        let text = serde_json::from_str(&without_halves(written.get()))
            .map_err(|_| serde::de::Error::custom("a string is expected"))?;
        Ok(Self(Kind::Written(Box::new((text, written.to_owned())))))
    }
}

/// Replaces escapes of half a surrogate pair by that of `U+FFFD`.
fn without_halves(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = match unit(rest) {
            Some(0xD800..=0xDBFF)
                if matches!(rest.get(6..).and_then(unit), Some(0xDC00..=0xDFFF)) =>
            {
                12
            }
            Some(0xD800..=0xDFFF) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            Some(_) => 6,
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out + rest
}

/// Returns the UTF-16 unit that an escape at the beginning of `text` stands for.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> JsonText {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn any_json_string_comes_out_as_it_went_in() {
        for (json, text) in [
            (r#""plain""#, "plain"),
            (r#""a\ud800b""#, "a\u{fffd}b"),
            (r#""\udc00\ud800""#, "\u{fffd}\u{fffd}"),
            (r#""\ud800\\u\ud83d\ude00\"""#, "\u{fffd}\\u\u{1f600}\""),
            (r#""\uD800\uD83D\uDE00é""#, "\u{fffd}\u{1f600}é"),
            (r#""\\ud800""#, "\\ud800"),
        ] {
            let read = read(json);
            assert_eq!(&*read, text, "{json}");
            let written = serde_json::to_string(&read).unwrap();
            assert!(read == self::read(&written), "{json}");
            if text.contains('\u{fffd}') {
                assert_eq!(written, json);
            }
        }
        for json in ["1", "null", "{}", r#"["a"]"#] {
            assert!(serde_json::from_str::<JsonText>(json).is_err(), "{json}");
        }
    }
}
