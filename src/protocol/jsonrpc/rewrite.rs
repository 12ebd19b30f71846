//! Writes objects, and copies of objects with some members changed. Pairs with [`super::members`].

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::members::Members;

/// A change of one member in [`Members::rewrite`].
#[derive(Debug)]
pub enum MemberChange<'a> {
    /// Keeps the value byte for byte.
    Keep,
    /// Replaces the value by this JSON.
    Replace(Cow<'a, str>),
    Drop,
}

impl<'a> Members<'a> {
    /// Applies `change` to each member and then adds the members of `add` (names and JSON).
    /// Existing members with a name in `add` are dropped.
    pub fn rewrite(
        &self,
        mut change: impl FnMut(&str, &'a RawValue) -> MemberChange<'a>,
        add: &[(&str, &str)],
    ) -> String {
        let size = |(name, value): (&str, &str)| name.len() + value.len() + 4;
        let old_size: usize = self.iter().map(|(name, value)| size((name, value.get()))).sum();
        let new_size: usize = add.iter().copied().map(size).sum();
        let mut out = ObjectWriter::with_capacity(old_size + new_size + 2);
        for (name, value) in self.iter().filter(|(name, _)| !add.iter().any(|new| new.0 == *name)) {
            match change(name, value) {
                MemberChange::Keep => out.member(name, value.get()),
                MemberChange::Replace(value) => out.member(name, &value),
                MemberChange::Drop => {}
            }
        }
        for (name, value) in add {
            out.member(name, value);
        }
        out.finish()
    }
}

/// Inserts a first member into the text of an object, without parsing. The object must not have
/// that member. Text that is no object comes back unchanged.
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

/// Writes text as a JSON string. Fast for names, which hardly ever need an escape.
pub fn write_name(out: &mut String, name: &str) {
    if name.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.push_str(&serde_json::json!(name).to_string());
    } else {
        out.push('"');
        out.push_str(name);
        out.push('"');
    }
}

/// Writes an object member by member. The caller must not write a name twice.
#[derive(Debug)]
pub struct ObjectWriter {
    text: String,
}

impl ObjectWriter {
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
        change: impl FnMut(&str, &'a RawValue) -> MemberChange<'a>,
        add: &[(&str, &str)],
    ) -> String {
        Members::parse(json).unwrap().rewrite(change, add)
    }

    #[test]
    fn an_object_is_copied_with_changes() {
        let json = r#"{"a": 1.10,"b\"":{ "x":1 },"c":3,"d":[]}"#;
        let new = "4".to_owned();
        let change = |name: &str, _: &_| match name {
            "c" => MemberChange::Replace(Cow::from(&new)),
            "d" => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        assert_eq!(
            rewrite(json, change, &[("e\n", "5"), ("a", "0")]),
            r#"{"b\"":{ "x":1 },"c":4,"e\n":5,"a":0}"#
        );
        assert_eq!(rewrite(json, |_, _| MemberChange::Drop, &[]), "{}");
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
        /// A copy parses to the same object, however odd the names.
        #[test]
        fn a_copy_parses_to_the_same_object(
           names in prop::collection::hash_set(".{0,4}|[a-c\"\\\\\n]{1,3}", 0..24)
        ) {
           let members = names.into_iter().zip(0..);
           let members = members.map(|(name, n): (String, i32)| (name, n.into()));
           let object = serde_json::Value::Object(members.collect());
            let copy = rewrite(&object.to_string(), |_, _| MemberChange::Keep, &[]);
            prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&copy).unwrap(), &object);
        }
    }
}
