//! The arguments of `trunkline call`: JSON, `key=value` pairs, standard input, or a file.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, stdin};

use anyhow::{Context, bail};
use serde_json::value::RawValue;

/// Returns the arguments as one JSON object. Whether JSON is right, the gateway decides.
pub(super) fn object(words: &[String]) -> anyhow::Result<String> {
    match words {
        [] => Ok("{}".to_owned()),
        [word] if word == "-" => {
            let mut text = String::new();
            stdin().read_to_string(&mut text).context("cannot read standard input")?;
            Ok(text)
        }
        [word] if word.starts_with('@') => {
            let file = &word[1..];
            fs::read_to_string(file).with_context(|| format!("cannot read {file}"))
        }
        [word] if word.trim_start().starts_with('{') => Ok(word.clone()),
        words => of_pairs(words),
    }
}

fn of_pairs(words: &[String]) -> anyhow::Result<String> {
    let mut names = BTreeSet::new();
    let mut members = Vec::with_capacity(words.len());
    for word in words {
        let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            bail!(
                "`{word}` is no argument: write KEY=VALUE pairs, or one JSON object, @FILE, or - \
                 for standard input"
            );
        };
        if !names.insert(name) {
            bail!("`{name}` is given twice");
        }
        members.push(format!("{}:{}", serde_json::to_string(name)?, json_of(value)?));
    }
    Ok(format!("{{{}}}", members.join(",")))
}

/// Returns a value as JSON, digit for digit if that is what it is; else as a text.
fn json_of(value: &str) -> serde_json::Result<String> {
    match serde_json::from_str::<&RawValue>(value) {
        Ok(json) => Ok(json.get().to_owned()),
        Err(_) => serde_json::to_string(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<String, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        object(&words).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_value_is_json_if_it_can_be_read_as_json_and_else_a_text() {
        for (words, json) in [
            (&[][..], "{}"),
            (&["{\"a\": 1}"], "{\"a\": 1}"),
            (&["text=hi"], r#"{"text":"hi"}"#),
            (&["text=hi there", "b=x=y"], r#"{"text":"hi there","b":"x=y"}"#),
            (&["n=12345678901234567890.10"], r#"{"n":12345678901234567890.10}"#),
            (&["yes=true", "none=null", "empty="], r#"{"yes":true,"none":null,"empty":""}"#),
            (&[r#"list=[1, "a"]"#, r#"id="7""#], r#"{"list":[1, "a"],"id":"7"}"#),
            (&[r#"bad=[1,"#, "quote=\"x"], r#"{"bad":"[1,","quote":"\"x"}"#),
        ] {
            assert_eq!(read(words).as_deref(), Ok(json));
        }
    }

    #[test]
    fn words_that_are_no_arguments_are_told() {
        let no_argument = |word| {
            format!(
                "`{word}` is no argument: write KEY=VALUE pairs, or one JSON object, @FILE, or - \
                 for standard input"
            )
        };
        assert_eq!(read(&["hi"]), Err(no_argument("hi")));
        assert_eq!(read(&["=hi"]), Err(no_argument("=hi")));
        assert_eq!(read(&["a=1", "-"]), Err(no_argument("-")));
        assert_eq!(read(&["{}", "{}"]), Err(no_argument("{}")));
        assert_eq!(read(&["a=1", "a=2"]), Err("`a` is given twice".to_owned()));
        assert!(read(&["@/no/such/file"]).unwrap_err().starts_with("cannot read /no/such/file: "));
    }
}
