//! Writes objects, and copies of them in which some members are different. Pairs with [`super::members`].

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::members::Members;

/// What becomes of one member in [`Members::rewrite`].
#[derive(Debug)]
pub enum Change<'a> {
    /// It stays, its value byte for byte.
    Keep,
    /// It gets this value, which is JSON.
    Replace(Cow<'a, str>),
    /// It is left out.
    Drop,
}

impl<'a> Members<'a> {
    /// The object with each member as `change` says, and then the members of `add` (names and JSON). What
    /// had a name of `add` before is left out.
    pub fn rewrite(
        &self,
        mut change: impl FnMut(&str, &'a RawValue) -> Change<'a>,
        add: &[(&str, &str)],
    ) -> String {
        let size = |(name, value): (&str, &str)| name.len() + value.len() + 4;
        let old_size: usize = self.iter().map(|(name, value)| size((name, value.get()))).sum();
        let new_size: usize = add.iter().copied().map(size).sum();
        let mut out = ObjectWriter::with_capacity(old_size + new_size + 2);
        for (name, value) in self.iter().filter(|(name, _)| !add.iter().any(|new| new.0 == *name)) {
            match change(name, value) {
                Change::Keep => out.member(name, value.get()),
                Change::Replace(value) => out.member(name, &value),
                Change::Drop => {}
            }
        }
        for (name, value) in add {
            out.member(name, value);
        }
        out.finish()
    }
}

/// The object with one more member, the first, by inserting text: nothing is parsed. `json` is an object
/// known not to have that member; anything else comes back as it was.
pub fn with_first_member(json: &str, name: &str, value: &str) -> String {
    let Some(rest) = json.trim_ascii_start().strip_prefix('{') else {
        return json.to_owned();
    };
    let mut out = ObjectWriter::with_capacity(json.len() + name.len() + value.len() + 5);
    out.member(name, value);
    if !rest.trim_ascii_start().starts_with('}') {
        out.text.push(',');
    }
    out.text.push_str(rest);
    out.text
}

/// Writes a text as a JSON string. Names hardly ever need an escape.
pub fn write_name(out: &mut String, name: &str) {
    if name.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.push_str(&serde_json::json!(name).to_string());
    } else {
        out.push('"');
        out.push_str(name);
        out.push('"');
    }
}

/// Writes an object member by member. The caller sees to it that no name comes twice.
#[derive(Debug)]
pub struct ObjectWriter {
    text: String,
}

impl ObjectWriter {
    /// An object that will take about so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut text = String::with_capacity(bytes);
        text.push('{');
        Self { text }
    }

    /// Adds a member; `value` is JSON.
    pub fn member(&mut self, name: &str, value: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        write_name(&mut self.text, name);
        self.text.push(':');
        self.text.push_str(value);
    }

    /// The whole object.
    pub fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rewrite<'a>(
        json: &'a str,
        change: impl FnMut(&str, &'a RawValue) -> Change<'a>,
        add: &[(&str, &str)],
    ) -> String {
        Members::parse(json).unwrap().rewrite(change, add)
    }

    #[test]
    fn an_object_is_copied_with_changes() {
        let json = r#"{"a": 1.10,"b\"":{ "x":1 },"c":3,"d":[]}"#;
        let new = "4".to_owned();
        let change = |name: &str, _: &_| match name {
            "c" => Change::Replace(Cow::from(&new)),
            "d" => Change::Drop,
            _ => Change::Keep,
        };
        assert_eq!(
            rewrite(json, change, &[("e\n", "5"), ("a", "0")]),
            r#"{"b\"":{ "x":1 },"c":4,"e\n":5,"a":0}"#
        );
        assert_eq!(rewrite(json, |_, _| Change::Drop, &[]), "{}");
    }

    #[test]
    fn a_first_member_is_spliced_in() {
        for (json, with) in [
            ("{}", r#"{"n":1}"#),
            (" { } ", r#"{"n":1 } "#),
            (r#"{"a":2}"#, r#"{"n":1,"a":2}"#),
            ("{ \"a\":2}", "{\"n\":1, \"a\":2}"),
        ] {
            assert_eq!(with_first_member(json, "n", "1"), with);
        }
        assert_eq!(with_first_member("{}", "\"", "1"), r#"{"\"":1}"#);
        assert_eq!(with_first_member("[]", "n", "1"), "[]");
    }

    proptest! {
        /// What serde makes of an object is what its copy still says, however odd the names.
        #[test]
        fn a_copy_means_the_same(names in prop::collection::hash_set(".{0,4}|[a-c\"\\\\\n]{1,3}", 0..24)) {
            let object: serde_json::Map<_, _> =
                names.into_iter().zip(0..).map(|(name, n): (String, i32)| (name, n.into())).collect();
            let object = serde_json::Value::Object(object);
            let copy = rewrite(&object.to_string(), |_, _| Change::Keep, &[]);
            prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&copy).unwrap(), &object);
        }
    }
}
