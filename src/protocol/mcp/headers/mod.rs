//! Headers in which a modern client repeats parts of its body. Checks that they agree.
//!
//! Proxies route, limit and log by these headers, but a server obeys the body. A request in which
//! they differ is refused, so that nobody can show a proxy another call than the server. Header
//! values are bytes, so that values that are no text are refused and not ignored.
//!
//! - [`decode`] and [`encode`]: the encoding of values
//! - [`same`], [`same_decoded`]: compare one header with one text of the body
//! - [`params`]: the headers that a tool asks for by [`annotations`] in its schema

mod annotations;
pub mod params;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub use params::HeaderParams;

/// A value between these is base64 of UTF-8, for text that a header cannot carry as it is.
const ENCODED_START: &str = "=?base64?";
const ENCODED_END: &str = "?=";
/// Longer values are cut in error messages.
const SHOWN_CHARS_MAX: usize = 100;

/// Says why a header's value is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Allowed are visible ASCII, space and tab.
    #[error("contains characters that a header must not have")]
    InvalidCharacters,
    /// Required are the standard alphabet and padding.
    #[error("is marked as base64 and is not valid base64")]
    NotBase64,
    #[error("is marked as base64 and does not decode to UTF-8")]
    NotUtf8,
}

/// Says, for the caller, how a header and the body disagree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Header mismatch: {0}")]
pub struct HeaderMismatch(String);

/// Decodes the value of `Mcp-Name` or `Mcp-Param-…`.
pub fn decode(value: &(impl AsRef<[u8]> + ?Sized)) -> Result<Cow<'_, str>, HeaderError> {
    let text = plain(value.as_ref())?;
    let encoded = text.strip_prefix(ENCODED_START).and_then(|rest| rest.strip_suffix(ENCODED_END));
    let Some(encoded) = encoded else {
        return Ok(Cow::Borrowed(text));
    };
    let bytes = STANDARD.decode(encoded).map_err(|_| HeaderError::NotBase64)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| HeaderError::NotUtf8)
}

/// Encodes a value of `Mcp-Name` or `Mcp-Param-…`. Text that a header can carry stays as it is.
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_safe = text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && text.trim_matches(' ') == text
        && !(text.starts_with(ENCODED_START) && text.ends_with(ENCODED_END));
    match is_safe {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{ENCODED_START}{}{ENCODED_END}", STANDARD.encode(text))),
    }
}

/// Compares a required header with the body. For `MCP-Protocol-Version` and `Mcp-Method`, whose
/// values are never encoded.
pub fn same(
    header: Option<impl AsRef<[u8]>>,
    body: &str,
    name: &'static str,
) -> Result<(), HeaderMismatch> {
    let header = header.ok_or_else(|| missing(name))?;
    compare(name, plain(header.as_ref()).map(Cow::Borrowed), body)
}

/// Compares `Mcp-Name`, whose value may be encoded, with the body.
pub fn same_decoded(
    header: Option<impl AsRef<[u8]>>,
    body: &str,
    name: &'static str,
) -> Result<(), HeaderMismatch> {
    let header = header.ok_or_else(|| missing(name))?;
    compare(name, decode(&header), body)
}

/// Returns the error for a repeated header. Equal values are refused too: a proxy may read another
/// one than the gateway checked.
pub fn repeated(name: &str) -> HeaderMismatch {
    HeaderMismatch(format!("the {} header is there more than once", shown(name)))
}

fn compare(
    name: &str,
    header: Result<Cow<'_, str>, HeaderError>,
    body: &str,
) -> Result<(), HeaderMismatch> {
    match header {
        Ok(header) if header == body => Ok(()),
        Ok(header) => Err(differs(name, &header, body)),
        Err(error) => Err(HeaderMismatch(format!("the {name} header {error}"))),
    }
}

/// Returns the text of a value without the whitespace around it, which HTTP ignores.
fn plain(value: &[u8]) -> Result<&str, HeaderError> {
    if !value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
        return Err(HeaderError::InvalidCharacters);
    }
    let text = std::str::from_utf8(value).map_err(|_| HeaderError::InvalidCharacters)?;
    Ok(text.trim_matches([' ', '\t']))
}

fn missing(name: &str) -> HeaderMismatch {
    HeaderMismatch(format!("the {name} header is missing"))
}

fn differs(name: &str, header: &str, body: &str) -> HeaderMismatch {
    let (header, body) = (shown(header), shown(body));
    HeaderMismatch(format!("the {name} header says '{header}' and the body says '{body}'"))
}

/// Escapes and cuts a value for an error message.
fn shown(value: &str) -> String {
    let mut escaped = value.escape_debug();
    let mut text: String = escaped.by_ref().take(SHOWN_CHARS_MAX).collect();
    if escaped.next().is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_specification_decode() {
        for (header, value) in [
            ("us-west1", "us-west1"),
            ("=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, 世界"),
            ("=?base64?IHBhZGRlZCA=?=", " padded "),
            ("=?base64?bGluZTEKbGluZTI=?=", "line1\nline2"),
            ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
            ("=?base64??=", ""),
            ("", ""),
            (" a\tb ", "a\tb"),
        ] {
            assert_eq!(decode(header).unwrap(), value, "{header}");
        }
    }

    #[test]
    fn only_text_that_a_header_cannot_carry_is_encoded() {
        for (value, header) in [
            ("us west 1", "us west 1"),
            ("", ""),
            ("=?base64?", "=?base64?"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("\tindented", "=?base64?CWluZGVudGVk?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode(value), header, "{value}");
        }
    }

    #[test]
    fn a_value_that_only_resembles_an_encoded_one_is_not_decoded() {
        for header in
            ["SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "=?BASE64?SGVsbG8=?=", "=?base64?="]
        {
            assert_eq!(decode(header).unwrap(), header);
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for header in [
            "=?base64?SGVsbG8?=",
            "=?base64?SGVs!!!bG8=?=",
            "=?base64?SGVsbG9=?=",
            "=?base64?_-8=?=",
        ] {
            assert_eq!(decode(header), Err(HeaderError::NotBase64), "{header}");
        }
        assert_eq!(decode("=?base64?/w==?="), Err(HeaderError::NotUtf8));
        for header in [&b"a\x00"[..], b"a\nb", b"\x7f", "é".as_bytes(), b"\xff"] {
            assert_eq!(decode(header), Err(HeaderError::InvalidCharacters), "{header:?}");
        }
    }

    #[test]
    fn a_header_must_say_what_the_body_says() {
        assert_eq!(same(Some("tools/call"), "tools/call", "Mcp-Method"), Ok(()));
        let message = |outcome: Result<(), HeaderMismatch>| outcome.unwrap_err().to_string();
        assert_eq!(
            message(same(Some("tools/list"), "tools/call", "Mcp-Method")),
            "Header mismatch: the Mcp-Method header says 'tools/list' \
            and the body says 'tools/call'"
        );
        assert_eq!(
            message(same(None::<&str>, "tools/call", "Mcp-Method")),
            "Header mismatch: the Mcp-Method header is missing"
        );
        assert!(same(Some("Tools/Call"), "tools/call", "Mcp-Method").is_err());
        assert!(same(Some("é"), "é", "Mcp-Method").is_err());
    }

    #[test]
    fn only_a_name_may_be_encoded() {
        assert_eq!(same_decoded(Some("=?base64?w6k=?="), "é", "Mcp-Name"), Ok(()));
        assert_eq!(same_decoded(Some(" foo "), "foo", "Mcp-Name"), Ok(()));
        assert!(same(Some("=?base64?Zm9v?="), "foo", "Mcp-Method").is_err());
        assert!(same_decoded(Some("=?base64?Zm9?="), "foo", "Mcp-Name").is_err());
        assert!(same_decoded(None::<&[u8]>, "foo", "Mcp-Name").is_err());
    }

    #[test]
    fn messages_show_little_of_long_values() {
        let long = "\n".repeat(5000);
        let mismatch = same_decoded(Some("a".repeat(5000)), &long, "Mcp-Name").unwrap_err();
        let message = mismatch.to_string();
        assert!(message.chars().count() < 300 && !message.contains('\n'), "{message}");
    }

    proptest! {
        /// Any encoded value decodes to itself.
        #[test]
        fn every_text_comes_through(value in ".{0,12}|=\\?base64\\?[a-z=]{0,4}\\?=|\\PC*") {
            let header = encode(&value);
            prop_assert!(header.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            prop_assert_eq!(header.trim(), &*header);
            prop_assert_eq!(same_decoded(Some(&*header), &value, "Mcp-Name"), Ok(()));
        }
    }
}
