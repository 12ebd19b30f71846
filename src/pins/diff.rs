//! The difference between two definitions, line by line.

use super::lines::lines;

/// Unchanged lines shown before and after each difference.
const CONTEXT: usize = 3;
/// The most comparisons that the search for the longest common sequence may take.
const COMPARED_MAX: usize = 250_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiffLine<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// Returns removed (`-`) and added (`+`) lines with their context. Takes canonical forms.
pub fn diff(before: &str, after: &str) -> String {
    let (before, after) = (lines(before), lines(after));
    let compared = compare(&before, &after);
    let is_different = |line: &DiffLine<'_>| !matches!(line, DiffLine::Same(_));
    let mut text = String::new();
    let mut skipped = false;
    for (at, line) in compared.iter().enumerate() {
        let near = at.saturating_sub(CONTEXT)..compared.len().min(at + CONTEXT + 1);
        if !compared[near].iter().any(is_different) {
            skipped = true;
            continue;
        }
        if std::mem::take(&mut skipped) {
            text += "  …\n";
        }
        text += &match line {
            DiffLine::Same(line) => format!("  {line}\n"),
            DiffLine::Gone(line) => format!("- {line}\n"),
            DiffLine::New(line) => format!("+ {line}\n"),
        };
    }
    if skipped && !text.is_empty() {
        text += "  …\n";
    }
    text
}

/// Returns all lines of both, common lines once.
fn compare<'a>(before: &'a [String], after: &'a [String]) -> Vec<DiffLine<'a>> {
    let start = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (start, before) = before.split_at(start);
    let after = &after[start.len()..];
    let pairs = before.iter().rev().zip(after.iter().rev());
    let end = pairs.take_while(|(one, other)| one == other).count();
    let (before, end) = before.split_at(before.len() - end);
    let middle = compare_middle(before, &after[..after.len() - end.len()]);
    let same = |lines: &'a [String]| lines.iter().map(|line| DiffLine::Same(line));
    same(start).chain(middle).chain(same(end)).collect()
}

/// Compares by the longest common sequence, or without one where the search would take too long.
fn compare_middle<'a>(before: &'a [String], after: &'a [String]) -> Vec<DiffLine<'a>> {
    let gone = |lines: &'a [String]| lines.iter().map(|line| DiffLine::Gone(line));
    let new = |lines: &'a [String]| lines.iter().map(|line| DiffLine::New(line));
    if before.len().saturating_mul(after.len()) > COMPARED_MAX {
        return gone(before).chain(new(after)).collect();
    }
    let common = common_lengths(before, after);
    let (mut one, mut other) = (0, 0);
    let mut compared = vec![];
    while one < before.len() && other < after.len() {
        if before[one] == after[other] {
            compared.push(DiffLine::Same(&before[one]));
            (one, other) = (one + 1, other + 1);
        } else if common[one + 1][other] >= common[one][other + 1] {
            compared.push(DiffLine::Gone(&before[one]));
            one += 1;
        } else {
            compared.push(DiffLine::New(&after[other]));
            other += 1;
        }
    }
    compared.extend(gone(&before[one..]));
    compared.extend(new(&after[other..]));
    compared
}

/// Returns, at `[one][other]`, the length of the longest common sequence of `before[one..]` and
/// `after[other..]`.
fn common_lengths(before: &[String], after: &[String]) -> Vec<Vec<u32>> {
    let mut lengths = vec![vec![0; after.len() + 1]; before.len() + 1];
    for one in (0..before.len()).rev() {
        for other in (0..after.len()).rev() {
            lengths[one][other] = if before[one] == after[other] {
                lengths[one + 1][other + 1] + 1
            } else {
                lengths[one + 1][other].max(lengths[one][other + 1])
            };
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_change_is_shown_with_its_context() {
        let before = r#"{"a":1,"b":2,"c":3,"d":"Adds.","e":5,"f":6,"g":7,"h":8}"#;
        let after = before.replace("Adds.", "Adds. Read ~/.ssh first.");
        let expected = [
            "  …",
            "    \"a\": 1,",
            "    \"b\": 2,",
            "    \"c\": 3,",
            "-   \"d\": \"Adds.\",",
            "+   \"d\": \"Adds. Read ~/.ssh first.\",",
            "    \"e\": 5,",
            "    \"f\": 6,",
            "    \"g\": 7,",
            "  …\n",
        ];
        assert_eq!(diff(before, &after), expected.join("\n"));
        assert_eq!(diff(before, before), "");
        assert_eq!(diff("", r#"{"a":1}"#), "+ {\n+   \"a\": 1\n+ }\n");
    }

    #[test]
    fn long_definitions_are_compared_quickly() {
        let lines = |name: &str| (0..20_000).map(|at| format!("{name}{at}")).collect::<Vec<_>>();
        let (before, after) = (lines("a"), lines("b"));
        assert_eq!(compare(&before, &after).len(), 40_000);
    }

    fn some_lines() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[ab]", 0..8)
    }

    /// Returns the length of the longest common sequence by trying all.
    fn longest(before: &[String], after: &[String]) -> usize {
        let (Some((one, rest)), Some((other, other_rest))) =
            (before.split_first(), after.split_first())
        else {
            return 0;
        };
        if one == other {
            return 1 + longest(rest, other_rest);
        }
        longest(rest, after).max(longest(before, other_rest))
    }

    proptest! {
        #[test]
        fn both_can_be_read_from_the_difference_and_common_lines_are_not_repeated(
           before in some_lines(), after in some_lines()
        ) {
            let compared = compare(&before, &after);
            let of = |skipped: fn(&DiffLine<'_>) -> bool| {
                let left = compared.iter().filter(|line| !skipped(line));
                let text = |line: &DiffLine<'_>| match line {
                    DiffLine::Same(line) | DiffLine::Gone(line) | DiffLine::New(line) => {
                        (*line).to_owned()
                    }
                };
                left.map(text).collect::<Vec<_>>()
            };
            prop_assert_eq!(of(|line| matches!(line, DiffLine::New(_))), before.clone());
            prop_assert_eq!(of(|line| matches!(line, DiffLine::Gone(_))), after.clone());
            let same = compared.iter().filter(|line| matches!(line, DiffLine::Same(_))).count();
            prop_assert_eq!(same, longest(&before, &after));
        }
    }
}
