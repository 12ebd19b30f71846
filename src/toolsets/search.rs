//! The pair of tools that stands for a large toolset: one finds tools, the other calls them.

use serde_json::{Value, json};

pub const SEARCH: &str = "search_tools";
pub const CALL: &str = "call_tool";

/// The tools that one search finds: by default, and at most.
const FOUND: usize = 10;
const FOUND_MAX: usize = 50;
/// Words of a query that count.
const WORDS_MAX: usize = 16;
/// A name says more than a description.
const NAME_WEIGHT: usize = 4;

/// A search of the caller's.
#[derive(Debug)]
pub struct Search {
    words: Vec<String>,
    limit: usize,
}

/// Returns the definitions of both tools, in JSON.
pub fn definitions() -> [String; 2] {
    let search = json!({
        "name": SEARCH,
        "description": "Finds tools by words in their names and descriptions. Returns their \
            definitions. Call a tool that you have found with `call_tool`.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words, such as `read page`. Empty: \
                    the first tools."},
                "limit": {"type": "integer", "minimum": 1, "maximum": FOUND_MAX,
                    "default": FOUND},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": true},
    });
    let call = json!({
        "name": CALL,
        "description": "Calls a tool that `search_tools` has found.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The tool's name"},
                "arguments": {"type": "object", "description": "As the tool's `inputSchema` asks"},
            },
            "required": ["name"],
        },
    });
    [search.to_string(), call.to_string()]
}

impl Search {
    /// Reads the arguments of a search; fails with what is wrong with them.
    pub fn read(arguments: &str) -> Result<Self, &'static str> {
        let arguments: Value =
            serde_json::from_str(arguments).map_err(|_| "the arguments are no JSON")?;
        let query = arguments.get("query").and_then(Value::as_str);
        let query = query.ok_or("`query` must be a string")?.to_lowercase();
        let limit = match arguments.get("limit") {
            None => FOUND,
            Some(limit) => match limit.as_u64() {
                Some(limit @ 1..) => limit.min(FOUND_MAX as u64) as usize,
                _ => return Err("`limit` must be a whole number from 1 on"),
            },
        };
        let words = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        Ok(Self { words: words.take(WORDS_MAX).map(str::to_owned).collect(), limit })
    }

    /// Returns the definitions that fit best, the best first. Each has its name before it.
    pub fn find<'a>(&self, tools: &'a [(String, String)]) -> Vec<&'a str> {
        let mut found: Vec<_> = tools
            .iter()
            .map(|(name, definition)| (self.score(name, definition), definition.as_str()))
            .filter(|(score, _)| *score > 0)
            .collect();
        // Stable: tools that fit alike stay in the toolset's order.
        found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        found.into_iter().take(self.limit).map(|(_, definition)| definition).collect()
    }

    fn score(&self, name: &str, definition: &str) -> usize {
        if self.words.is_empty() {
            return 1;
        }
        let name = name.to_lowercase();
        let about = definition.to_lowercase();
        let score = |word: &String| {
            NAME_WEIGHT * usize::from(name.contains(&**word)) + usize::from(about.contains(&**word))
        };
        self.words.iter().map(score).sum()
    }
}

/// Writes the result of a search.
pub fn result(found: &[&str]) -> String {
    let text = format!("[{}]", found.join(",\n"));
    json!({"content": [{"type": "text", "text": text}]}).to_string()
}
