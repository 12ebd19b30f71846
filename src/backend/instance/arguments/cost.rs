//! Bounds what a schema makes a check do, before any arguments are seen.
//!
//! Some keywords apply further schemas to the same value (`allOf`, `$ref`, …), others to the values
//! inside (`properties`, `items`, …). The first kind must end, and is counted. Of the second kind
//! counts how many apply to one inner value: where that is more than one, every level of the
//! arguments multiplies the visits.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The schemas that apply to one value.
const APPLIED_MAX: usize = 1000;
/// The longest chain of schemas that apply to one value because of each other.
const CHAIN_MAX: usize = 64;
/// The schemas in the middle of a check, one inside the other: a chain for each level.
pub(super) const STACK_MAX: usize = 1024;
const PATTERNS_MAX: usize = 32;

/// Keywords whose value is one schema for the same value.
const SAME: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords whose value is a list, or an object, of schemas for the same value.
const SAME_EACH: [&str; 4] = ["allOf", "anyOf", "oneOf", "dependentSchemas"];
/// Of these at most one applies to an inner value, for each group.
const INNER_GROUPS: [&[&str]; 6] = [
    &["properties", "additionalProperties"],
    &["unevaluatedProperties"],
    &["propertyNames"],
    &["prefixItems", "items", "additionalItems"],
    &["contains"],
    &["unevaluatedItems"],
];
/// Keywords that would make the meaning of a `$ref` depend on more than the document's root.
const UNSUPPORTED: [&str; 5] =
    ["$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "$recursiveAnchor"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// The most schemas that apply to one value.
    pub applied: usize,
    /// The most of them that apply to one inner value, because of those that apply to the outer.
    inner: usize,
    /// The longest chain.
    chain: usize,
}

impl Cost {
    /// Fails with the reason why the schema is not used.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut reader = Reader { root: schema, known: HashMap::new(), patterns: 0 };
        let mut most = Self { applied: 1, inner: 1, chain: 1 };
        reader.read_all(schema, true, &mut most)?;
        if reader.patterns > PATTERNS_MAX {
            return Err(format!("it has more than {PATTERNS_MAX} patterns"));
        }
        Ok(most)
    }

    /// Returns the most visits that these arguments cost.
    pub(super) fn visits(&self, arguments: &Value) -> u64 {
        let each = |inner: &Value| self.visits(inner);
        let inner: u64 = match arguments {
            Value::Array(items) => items.iter().map(each).fold(0, u64::saturating_add),
            Value::Object(members) => members.values().map(each).fold(0, u64::saturating_add),
            _ => 0,
        };
        inner.saturating_mul(self.inner as u64).saturating_add(1)
    }

    pub(super) fn fits_the_stack(&self, arguments: &Value) -> bool {
        levels(arguments) * self.chain <= STACK_MAX
    }
}

fn levels(value: &Value) -> usize {
    let inner = match value {
        Value::Array(items) => items.iter().map(levels).max(),
        Value::Object(members) => members.values().map(levels).max(),
        _ => None,
    };
    1 + inner.unwrap_or_default()
}

struct Reader<'a> {
    root: &'a Value,
    /// The cost of each schema, by its address; `None` while it is computed.
    known: HashMap<*const Value, Option<Cost>>,
    patterns: usize,
}

impl<'a> Reader<'a> {
    /// Reads a schema and all schemas inside it.
    fn read_all(
        &mut self,
        schema: &'a Value,
        is_root: bool,
        most: &mut Cost,
    ) -> Result<(), String> {
        let Some(members) = schema.as_object() else { return Ok(()) };
        if let Some(keyword) = UNSUPPORTED.into_iter().find(|it| members.contains_key(*it)) {
            return Err(format!("`{keyword}` is not supported"));
        }
        if !is_root && members.contains_key("$id") {
            return Err("`$id` is supported at its root only".to_owned());
        }
        self.patterns += usize::from(members.contains_key("pattern"));
        self.patterns +=
            members.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        let cost = self.cost(schema)?;
        most.applied = most.applied.max(cost.applied);
        most.inner = most.inner.max(cost.inner);
        most.chain = most.chain.max(cost.chain);
        for inside in schemas_inside(members) {
            self.read_all(inside, false, most)?;
        }
        Ok(())
    }

    /// Returns the cost of the schema for one value.
    fn cost(&mut self, schema: &'a Value) -> Result<Cost, String> {
        match self.known.get(&std::ptr::from_ref(schema)) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => return Err("it applies a schema to a value because of itself".to_owned()),
            None => {}
        }
        self.known.insert(schema, None);
        let mut cost = Cost { applied: 1, inner: 0, chain: 1 };
        if let Some(members) = schema.as_object() {
            cost.inner = inner_of(members);
            for next in self.for_the_same_value(members)? {
                let next = self.cost(next)?;
                cost.applied += next.applied;
                cost.inner += next.inner;
                cost.chain = cost.chain.max(next.chain + 1);
            }
        }
        if cost.applied.max(cost.inner) > APPLIED_MAX || cost.chain > CHAIN_MAX {
            return Err(format!(
                "it applies more than {APPLIED_MAX} schemas to one value, or more than \
                 {CHAIN_MAX} because of each other"
            ));
        }
        self.known.insert(schema, Some(cost));
        Ok(cost)
    }

    fn for_the_same_value(
        &self,
        members: &'a Map<String, Value>,
    ) -> Result<Vec<&'a Value>, String> {
        let mut next: Vec<_> = SAME.iter().filter_map(|keyword| members.get(*keyword)).collect();
        next.extend(SAME_EACH.iter().filter_map(|keyword| members.get(*keyword)).flat_map(each));
        if let Some(reference) = members.get("$ref") {
            let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
            let target = pointer.and_then(|pointer| self.root.pointer(pointer));
            next.push(target.ok_or("a `$ref` leads to nothing in it")?);
        }
        // In old drafts these are schemas; in new ones, names.
        if let Some(Value::Object(dependencies)) = members.get("dependencies") {
            next.extend(dependencies.values().filter(|it| !it.is_array()));
        }
        Ok(next)
    }
}

/// Returns how many schemas the members apply to one inner value, at most.
fn inner_of(members: &Map<String, Value>) -> usize {
    let has_one = |group: &&&[&str]| group.iter().any(|keyword| members.contains_key(*keyword));
    let groups = INNER_GROUPS.iter().filter(has_one).count();
    groups + members.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len)
}

/// Returns all schemas inside: every object or array may be, or have, one.
fn schemas_inside(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    const NOT_SCHEMAS: [&str; 4] = ["enum", "const", "default", "examples"];
    const MAPS: [&str; 6] = [
        "properties",
        "patternProperties",
        "$defs",
        "definitions",
        "dependentSchemas",
        "dependencies",
    ];
    members.iter().flat_map(|(keyword, value)| match value {
        _ if NOT_SCHEMAS.contains(&keyword.as_str()) => vec![],
        Value::Object(inside) if MAPS.contains(&keyword.as_str()) => inside.values().collect(),
        Value::Array(inside) => inside.iter().collect(),
        value => vec![value],
    })
}

fn each(schemas: &Value) -> Vec<&Value> {
    match schemas {
        Value::Array(schemas) => schemas.iter().collect(),
        Value::Object(schemas) => schemas.values().collect(),
        _ => vec![],
    }
}
