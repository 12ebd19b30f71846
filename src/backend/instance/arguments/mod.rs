//! Checks arguments against the `inputSchema` of their tool, for servers with `validate = true`.
//!
//! A server wrote the schema and a tenant the arguments, so both are bounded before the check: the
//! schema by [`cost`], the arguments by the visits that both together cost. Patterns are matched in
//! linear time. Nothing is fetched: a schema that refers to another document is not used.

mod cost;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use self::cost::Cost;

/// The longest schema that is used.
const SCHEMA_LEN_MAX: usize = 64 * 1024;
/// The memory of one compiled pattern.
const PATTERN_SIZE_MAX: usize = 128 * 1024;
/// The visits of one check: a value is visited once for each schema that applies to it. A visit
/// takes well under a microsecond.
const VISITS_MAX: u64 = 1_000_000;
/// The first error is searched for, which copies arguments, up to this many bytes times schemas.
const SEARCH_MAX: u64 = 4 * 1024 * 1024;
/// The longest pointer, and the longest reason, that are shown.
const TEXT_LEN_MAX: usize = 256;

/// A compiled `inputSchema`.
#[derive(Debug)]
pub struct ArgumentsSchema {
    validator: Validator,
    cost: Cost,
}

/// The first field that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the arguments do not fit the tool's `inputSchema`, at `{pointer}`: {reason}")]
pub struct Misfit {
    /// A JSON Pointer into the arguments; empty for all of them.
    pub pointer: String,
    /// Has nothing of the arguments, only of the schema.
    pub reason: String,
}

impl ArgumentsSchema {
    /// Compiles a schema; fails with the reason why it is not used.
    pub fn compile(schema: &str) -> Result<Self, String> {
        if schema.len() > SCHEMA_LEN_MAX {
            return Err(format!("it is longer than {SCHEMA_LEN_MAX} bytes"));
        }
        let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
        let cost = Cost::of(&schema)?;
        let patterns =
            PatternOptions::regex().size_limit(PATTERN_SIZE_MAX).dfa_size_limit(PATTERN_SIZE_MAX);
        let compiled = jsonschema::options().with_pattern_options(patterns).build(&schema);
        let validator = compiled.map_err(|error| shortened(error.to_string()))?;
        Ok(Self { validator, cost })
    }

    /// Returns about the bytes that a check reads.
    pub fn work(&self, arguments: &str) -> usize {
        arguments.len().saturating_mul(self.cost.applied)
    }

    pub fn check(&self, arguments: &str) -> Result<(), Misfit> {
        let whole = |reason: &str| Misfit { pointer: String::new(), reason: reason.to_owned() };
        let value: Value =
            serde_json::from_str(arguments).map_err(|_| whole("they are no JSON"))?;
        if self.cost.visits(&value) > VISITS_MAX || !self.cost.fits_the_stack(&value) {
            return Err(whole("they are too many, or nested too deep, to be checked against it"));
        }
        if self.validator.is_valid(&value) {
            return Ok(());
        }
        if self.work(arguments) as u64 > SEARCH_MAX {
            return Err(whole("they are too long to say where"));
        }
        match self.validator.validate(&value) {
            Ok(()) => Ok(()),
            Err(error) => Err(Misfit {
                pointer: pointer_of(&error),
                reason: shortened(error.masked_with("the value").to_string()),
            }),
        }
    }
}

/// Returns the pointer to the field itself, also if it is missing or must not be there.
fn pointer_of(error: &ValidationError<'_>) -> String {
    let field = match error.kind() {
        ValidationErrorKind::Required { property } => property.as_str(),
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            unexpected.first().map(String::as_str)
        }
        _ => None,
    };
    let mut pointer = error.instance_path().as_str().to_owned();
    if let Some(field) = field {
        pointer.push('/');
        pointer += &field.replace('~', "~0").replace('/', "~1");
    }
    shortened(pointer)
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_LEN_MAX {
        text.truncate(text.floor_char_boundary(TEXT_LEN_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    fn check(schema: &Value, arguments: &Value) -> Result<(), Misfit> {
        ArgumentsSchema::compile(&schema.to_string()).unwrap().check(&arguments.to_string())
    }

    #[test]
    fn the_field_that_does_not_fit_is_named_and_the_arguments_are_not_repeated() {
        let item = json!({"type": "object", "required": ["name"], "additionalProperties": false,
            "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}}});
        let schema = json!({"type": "object", "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}}, "a/b": {"minimum": 3}},
            "$defs": {"item": item}});
        assert_eq!(check(&schema, &json!({"items": [{"name": "a"}], "a/b": 3})), Ok(()));
        for (arguments, pointer) in [
            (json!({"items": "secret"}), "/items"),
            (json!({"items": [{"name": "a"}, {"name": "secret5"}]}), "/items/1/name"),
            (json!({"items": [{}]}), "/items/0/name"),
            (json!({"items": [{"name": "a", "x~y": "secret"}]}), "/items/0/x~0y"),
            (json!({"a/b": 2}), "/a~1b"),
        ] {
            let misfit = check(&schema, &arguments).unwrap_err();
            assert_eq!(misfit.pointer, pointer, "{misfit}");
            assert!(!misfit.reason.contains("secret"), "{misfit}");
        }
    }

    #[test]
    fn schemas_that_cannot_be_used_say_why() {
        let long = json!({"description": "x".repeat(SCHEMA_LEN_MAX)});
        for (schema, part) in [
            (long, "longer than"),
            (json!({"$ref": "https://example.com/schema"}), "`$ref`"),
            (json!({"$ref": "file:///etc/passwd"}), "`$ref`"),
            (json!({"$ref": "#/$defs/nothing"}), "`$ref`"),
            (json!({"$ref": "#"}), "itself"),
            (
                json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref":
                "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
                "itself",
            ),
            (json!({"properties": {"a": {"$dynamicRef": "#x"}}}), "`$dynamicRef`"),
            (json!({"type": "nothing"}), "not valid"),
            (json!({"pattern": "(?=a)b"}), "(?=a)b"),
        ] {
            let error = ArgumentsSchema::compile(&schema.to_string()).unwrap_err();
            assert!(error.contains(part), "{schema}: {error}");
        }
        // Each of them applies the next one twice.
        let double = |n: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            (format!("d{n}"), json!({"allOf": [next, next]}))
        };
        let mut defs: serde_json::Map<_, _> = (0..40).map(double).collect();
        defs.insert("d40".to_owned(), json!({"type": "object"}));
        let schema = json!({"$ref": "#/$defs/d0", "$defs": defs});
        let error = ArgumentsSchema::compile(&schema.to_string()).unwrap_err();
        assert!(error.contains("applies"), "{error}");
    }

    #[test]
    fn no_check_takes_long_whatever_is_sent() {
        let began = Instant::now();
        // Both branches go down: every level doubles the work.
        let branch = json!({"properties": {"a": {"$ref": "#"}}});
        let schema = json!({"anyOf": [branch, branch, {"required": ["b"]}]});
        let deep = (0..60).fold(json!({"a": 1}), |inner, _| json!({"a": inner}));
        let misfit = check(&schema, &deep).unwrap_err();
        assert!(misfit.reason.contains("nested too deep"), "{misfit}");
        assert_eq!(check(&schema, &json!({"a": {"a": {"a": {}}}})), Ok(()));
        // A tree with two children of each node is visited once.
        let tree = json!({"type": "object", "properties":
            {"l": {"$ref": "#"}, "r": {"$ref": "#"}}, "additionalProperties": false});
        let deep = (0..60).fold(json!({}), |inner, _| json!({"l": {}, "r": inner}));
        assert_eq!(check(&tree, &deep), Ok(()));
        // Patterns that backtracking engines choke on.
        let pattern = json!({"properties": {"a": {"pattern": "^(a+)+$"}}});
        let text = format!("{}b", "a".repeat(100_000));
        assert_eq!(check(&pattern, &json!({"a": text})).unwrap_err().pointer, "/a");
        let many = json!({"a": vec![json!({}); 200_000]});
        let items = json!({"properties": {"a": {"items": {"type": "object"}}}});
        assert_eq!(check(&items, &many), Ok(()));
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }

    #[test]
    fn the_deepest_chain_that_is_allowed_fits_a_worker_s_stack() {
        let nested = (0..cost::STACK_MAX / 64 - 3)
            .fold(json!({"$ref": "#/$defs/next"}), |inner, _| json!({"allOf": [inner]}));
        let schema = json!({"$ref": "#/$defs/all", "$defs": {
            "all": nested, "next": {"properties": {"a": {"$ref": "#/$defs/all"}}}}});
        let schema = ArgumentsSchema::compile(&schema.to_string()).unwrap();
        let deep = (0..63).fold(json!({}), |inner, _| json!({"a": inner})).to_string();
        let check = move || schema.check(&deep);
        // Workers of the runtime have 2 MiB.
        let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(check);
        assert_eq!(thread.unwrap().join().unwrap(), Ok(()));
    }
}
