//! The `Mcp-Param-…` headers: the values of the parameters that a tool's schema marks with
//! `x-mcp-header`.

use serde_json::value::RawValue;

use super::{HeaderMismatch, annotations, compare, decode, differs, encode, missing, shown};
use crate::protocol::jsonrpc::members::{Members, MembersError};

/// The largest integer that every JSON parser reads exactly.
const SAFE_INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderParams {
    /// Most tools have none.
    Valid(Vec<HeaderParam>),
    /// An annotation breaks the rules, for this reason. Clients must not use such a tool over HTTP.
    /// If a client does, its headers cannot be checked.
    Invalid(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderParam {
    /// The header's name as the server spells it, cut for messages.
    pub(super) name: String,
    /// The header's name in lower case.
    pub(super) key: String,
    /// The path from the arguments to the value.
    pub(super) path: Vec<String>,
}

impl HeaderParams {
    /// Finds the annotations in a tool's `inputSchema`.
    pub fn of(input_schema: &RawValue) -> Self {
        match annotations::find(input_schema.get()) {
            Ok(params) => Self::Valid(params),
            Err(why) => Self::Invalid(why),
        }
    }

    /// Compares the headers of a call with its arguments, a JSON object. `header` takes names in
    /// lower case, such as `mcp-param-region`.
    pub fn check<'h, H: AsRef<[u8]> + ?Sized + 'h>(
        &self,
        arguments: &str,
        header: impl Fn(&str) -> Option<&'h H>,
    ) -> Result<(), HeaderMismatch> {
        let Self::Valid(params) = self else { return Ok(()) };
        if params.is_empty() {
            return Ok(());
        }
        let arguments = Members::of_caller(arguments).map_err(unreadable)?;
        for param in params {
            let value = param.find(&arguments).map_err(unreadable)?;
            match (value, header(&param.key)) {
                (None, None) => {}
                (Some(_), None) => return Err(missing(&param.name)),
                (None, Some(_)) => return Err(param.unexpected()),
                (Some(value), Some(header)) => param.compare(value, header)?,
            }
        }
        Ok(())
    }

    /// Returns the headers that repeat the arguments of a call: names in lower case, and values.
    pub fn write(&self, arguments: &str) -> Result<Vec<(String, String)>, HeaderMismatch> {
        let Self::Valid(params) = self else { return Ok(vec![]) };
        if params.is_empty() {
            return Ok(vec![]);
        }
        let arguments = Members::of_caller(arguments).map_err(unreadable)?;
        let mut headers = vec![];
        for param in params {
            let value = param.find(&arguments).map_err(unreadable)?.map(RawValue::get);
            let text = match value {
                // These have no header. The server will refuse them if they are wrong.
                None => continue,
                Some(value) if value.starts_with(['{', '[']) => continue,
                Some(value) if value.starts_with('"') => {
                    let text = serde_json::from_str(value);
                    text.map_err(|_| differs(&param.name, "", value))?
                }
                Some(value) => value.to_owned(),
            };
            headers.push((param.key.clone(), encode(&text).into_owned()));
        }
        Ok(headers)
    }
}

fn unreadable(error: MembersError) -> HeaderMismatch {
    HeaderMismatch(format!("the arguments cannot be read: {error}"))
}

impl HeaderParam {
    /// Returns the value in the arguments; `null` counts as absent.
    fn find<'a>(&self, arguments: &Members<'a>) -> Result<Option<&'a RawValue>, MembersError> {
        let (first, rest) = self.path.split_first().expect("a property has a name");
        let mut value = arguments.get(first);
        for name in rest {
            let Some(inside) = value.filter(|value| value.get().starts_with('{')) else {
                return Ok(None);
            };
            value = Members::of_caller(inside.get())?.get(name);
        }
        Ok(value.filter(|value| value.get() != "null"))
    }

    /// Compares by the type of the value. The server checks the type against the schema.
    fn compare(
        &self,
        value: &RawValue,
        header: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<(), HeaderMismatch> {
        let header = decode(header);
        let value = value.get();
        match (value.as_bytes()[0], &header) {
            (b'{' | b'[', _) => {
                let name = &self.name;
                Err(HeaderMismatch(format!(
                    "the {name} header cannot stand for an object or array"
                )))
            }
            (b'"', _) => {
                let text: String = serde_json::from_str(value)
                    .map_err(|_| differs(&self.name, header.as_deref().unwrap_or(""), value))?;
                compare(&self.name, header, &text)
            }
            (b'-' | b'0'..=b'9', Ok(number)) if same_number(number, value) => Ok(()),
            _ => compare(&self.name, header, value),
        }
    }

    fn unexpected(&self) -> HeaderMismatch {
        let (name, path) = (&self.name, shown(&self.path.join(".")));
        HeaderMismatch(format!("the {name} header is there and the argument '{path}' is not"))
    }
}

/// Compares numbers by value: 42 equals 42.0. Only up to the size that every parser reads exactly.
fn same_number(header: &str, body: &str) -> bool {
    let number = |text: &str| {
        let is_plain =
            text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        text.parse::<f64>().ok().filter(|number| is_plain && number.abs() <= SAFE_INTEGER_MAX)
    };
    number(header).is_some_and(|header| number(body) == Some(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Returns a tool with a parameter of each type, one of them nested.
    fn params() -> HeaderParams {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "options": {"type": "object", "properties": {
                "dry": {"type": "boolean", "x-mcp-header": "Dry-Run"},
            }},
            "query": {"type": "string"},
        }});
        HeaderParams::of(&serde_json::value::to_raw_value(&schema).unwrap())
    }

    fn check(arguments: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let header =
            |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        params().check(arguments, header).map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn headers_that_repeat_the_arguments_pass() {
        let all = r#"{"region":"us-west1","count":42,"options":{"dry":true},"query":"x"}"#;
        for count in ["42", "42.0", "4.2e1"] {
            let headers = [
                ("mcp-param-region", "us-west1"),
                ("mcp-param-count", count),
                ("mcp-param-dry-run", "true"),
            ];
            assert_eq!(check(all, &headers), Ok(()));
        }
        assert_eq!(check("{}", &[("mcp-param-other", "1")]), Ok(()));
        assert_eq!(check(r#"{"region":null,"options":{}}"#, &[]), Ok(()));
        assert_eq!(check(r#"{"options":"none"}"#, &[]), Ok(()));
        assert_eq!(check(r#"{"region":""}"#, &[("mcp-param-region", "")]), Ok(()));
        assert_eq!(
            check(r#"{"region":"\u00e9"}"#, &[("mcp-param-region", "=?base64?w6k=?=")]),
            Ok(())
        );
        assert_eq!(
            check(r#"{"count":9007199254740993}"#, &[("mcp-param-count", "9007199254740993")]),
            Ok(())
        );
    }

    #[test]
    fn headers_that_differ_are_refused() {
        for (arguments, headers, why) in [
            (r#"{"region":"a"}"#, &[][..], "the Mcp-Param-Region header is missing"),
            (r#"{"region":"a"}"#, &[("mcp-param-region", "b")], "says 'b' and the body says 'a'"),
            (r#"{"region":"a"}"#, &[("mcp-param-region", "A")], "says 'A'"),
            (r#"{"region":"a"}"#, &[("mcp-param-region", "=?base64?Y?=")], "not valid base64"),
            (
                r#"{"region":"a"}"#,
                &[("mcp-param-region", "é")],
                "characters that a header must not have",
            ),
            (r#"{"region":"true"}"#, &[("mcp-param-region", "\"true\"")], "the body says 'true'"),
            (r#"{"region":null}"#, &[("mcp-param-region", "null")], "the argument 'region' is not"),
            ("{}", &[("mcp-param-dry-run", "true")], "the argument 'options.dry' is not"),
            (r#"{"options":{"dry":false}}"#, &[("mcp-param-dry-run", "False")], "says 'False'"),
            (r#"{"count":42}"#, &[("mcp-param-count", "42.5")], "says '42.5'"),
            (r#"{"count":42}"#, &[("mcp-param-count", "")], "the body says '42'"),
            (r#"{"count":9007199254740993}"#, &[("mcp-param-count", "9007199254740992")], "says"),
            (r#"{"count":{}}"#, &[("mcp-param-count", "{}")], "cannot stand for an object"),
            (r#"{"region":"a","region":"b"}"#, &[("mcp-param-region", "b")], "appears twice"),
            (
                r#"{"options":{"dry":true,"dry":false}}"#,
                &[("mcp-param-dry-run", "true")],
                "appears twice",
            ),
        ] {
            let message = check(arguments, headers).unwrap_err();
            assert!(message.contains(why), "{arguments}: {message}");
        }
    }

    #[test]
    fn a_tool_with_invalid_annotations_is_not_checked() {
        let schema = json!({"x-mcp-header": "Root"});
        let params = HeaderParams::of(&serde_json::value::to_raw_value(&schema).unwrap());
        assert!(matches!(params, HeaderParams::Invalid(_)));
        assert_eq!(params.check("{}", |_| Some("anything")), Ok(()));
    }

    #[test]
    fn written_headers_pass_the_check() {
        for arguments in [
            r#"{"region":"us-west1","count":42,"options":{"dry":true},"query":"x"}"#,
            r#"{"region":" \u00e9\n","count":-4.2e1,"options":{"dry":null}}"#,
            r#"{"region":"","options":7}"#,
            "{}",
        ] {
            let headers = params().write(arguments).unwrap();
            let pairs: Vec<_> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(check(arguments, &pairs), Ok(()), "{arguments}: {pairs:?}");
        }
        let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            params().write(r#"{"options":{"dry":false},"region":"é","count":{}}"#).unwrap(),
            [named("mcp-param-dry-run", "false"), named("mcp-param-region", "=?base64?w6k=?=")]
        );
        assert!(params().write(r#"{"region":"a","region":"b"}"#).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(
            arguments in "[{}\\[\\]\":,a1 ]{0,20}|\\{\"(region|count)\":[-0-9.e\"a-c]{0,4}\\}",
            header in prop::option::of(".{0,6}"),
        ) {
            let _ = params().check(&arguments, |_| header.as_deref());
            let _ = params().write(&arguments);
        }
    }
}
