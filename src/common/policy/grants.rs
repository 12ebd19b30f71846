//! Patterns of servers and tools: `search`, `search/query`, `search/read_*`, `*`; and grants, which
//! are patterns or toolsets: `toolset:research`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A server's id and the longest name of a tool.
const LEN_MAX: usize = 300;
/// Says in the API's description which patterns there are.
const PATTERN: &str = r"^[A-Za-z0-9_*-]+(/[^\s\u0000-\u001f\u007f-\u009f]+)?$";

/// Says the same of grants.
const GRANT: &str =
    r"^(toolset:[A-Za-z0-9_*-]+|[A-Za-z0-9_*-]+(/[^\s\u0000-\u001f\u007f-\u009f]+)?)$";

/// Matches servers, or tools of servers. `*` stands for any number of characters.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = PATTERN, "maxLength" = LEN_MAX))]
pub struct Pattern {
    server: String,
    /// `None` matches the whole server.
    tool: Option<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a pattern: write a server's id, such as `search`, or a server and a tool, such \
     as `search/query`; `*` stands for any characters"
)]
pub struct InvalidPattern(String);

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        let (server, tool) = match text.split_once('/') {
            Some((server, tool)) => (server, Some(tool)),
            None => (text, None),
        };
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'*');
        let is_server = !server.is_empty() && server.bytes().all(is_id);
        let is_tool = |tool: &str| {
            !tool.is_empty() && !tool.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        if text.len() > LEN_MAX || !is_server || !tool.is_none_or(is_tool) {
            return Err(InvalidPattern(text.to_owned()));
        }
        Ok(Self { server: server.to_owned(), tool: tool.map(str::to_owned) })
    }

    /// Returns the part that names servers.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the part that names tools, if there is one.
    pub fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    /// Returns whether the pattern matches a server or some of its tools.
    pub fn covers_part_of(&self, server: &str) -> bool {
        matches(&self.server, server)
    }

    pub fn covers_whole_server(&self, server: &str) -> bool {
        self.tool.is_none() && self.covers_part_of(server)
    }

    /// Returns whether the pattern matches a tool. `None` stands for requests other than tool
    /// calls: only a whole server covers them.
    pub fn covers(&self, server: &str, tool: Option<&str>) -> bool {
        self.covers_part_of(server)
            && match (&self.tool, tool) {
                (None, _) => true,
                (Some(pattern), Some(tool)) => matches(pattern, tool),
                (Some(_), None) => false,
            }
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, mut rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(before) else { return false };
    // Each part between two `*` matches at its first occurrence, which leaves the most for the
    // rest.
    while let Some((part, after)) = rest.split_once('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
        rest = after;
    }
    text.ends_with(rest)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tool {
            None => f.write_str(&self.server),
            Some(tool) => write!(f, "{}/{tool}", self.server),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        Self::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

/// Begins the grant of a toolset.
const TOOLSET: &str = "toolset:";

/// One entry of what a tenant may use.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = GRANT, "maxLength" = LEN_MAX))]
pub enum Grant {
    /// Servers, or tools of servers, under their own names.
    Tools(Pattern),
    /// Toolsets: their tools, under their names alone. `*` stands for any characters.
    Toolset(String),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a pattern: write a server's id, such as `search`, a server and a tool, such as \
     `search/query`, or a toolset, such as `toolset:research`; `*` stands for any characters"
)]
pub struct InvalidGrant(String);

impl Grant {
    pub fn parse(text: &str) -> Result<Self, InvalidGrant> {
        let invalid = || InvalidGrant(text.to_owned());
        match text.strip_prefix(TOOLSET).filter(|_| text.len() <= LEN_MAX) {
            Some(id) => match Pattern::parse(id) {
                Ok(Pattern { server, tool: None }) => Ok(Self::Toolset(server)),
                _ => Err(invalid()),
            },
            None => Pattern::parse(text).map(Self::Tools).map_err(|_| invalid()),
        }
    }

    fn pattern(&self) -> Option<&Pattern> {
        match self {
            Self::Tools(pattern) => Some(pattern),
            Self::Toolset(_) => None,
        }
    }

    /// Returns the id of the toolset that it names, unless it stands for several.
    pub fn toolset(&self) -> Option<&str> {
        match self {
            Self::Toolset(id) if !id.contains('*') => Some(id),
            Self::Toolset(_) | Self::Tools(_) => None,
        }
    }

    /// Returns whether the grant covers a toolset. All servers include all toolsets.
    fn covers_toolset(&self, toolset: &str) -> bool {
        match self {
            Self::Tools(pattern) => pattern.server == "*" && pattern.tool.is_none(),
            Self::Toolset(id) => matches(id, toolset),
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tools(pattern) => pattern.fmt(f),
            Self::Toolset(id) => write!(f, "{TOOLSET}{id}"),
        }
    }
}

impl TryFrom<String> for Grant {
    type Error = InvalidGrant;

    fn try_from(text: String) -> Result<Self, InvalidGrant> {
        Self::parse(&text)
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> Self {
        grant.to_string()
    }
}

/// The servers, tools and toolsets that a tenant may use: those that one of its grants covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Grants(Vec<Grant>);

impl Grants {
    pub fn new(grants: Vec<Grant>) -> Self {
        Self(grants)
    }

    pub fn everything() -> Self {
        Self(vec![Grant::Tools(Pattern { server: "*".to_owned(), tool: None })])
    }

    pub fn list(&self) -> &[Grant] {
        &self.0
    }

    /// Returns the grants that are no toolsets.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.0.iter().filter_map(Grant::pattern)
    }

    /// Returns whether the tenant knows of the server.
    pub fn sees(&self, server: &str) -> bool {
        self.patterns().any(|pattern| pattern.covers_part_of(server))
    }

    /// Returns whether the tenant may use prompts, resources and the like, too.
    pub fn has_whole_server(&self, server: &str) -> bool {
        self.patterns().any(|pattern| pattern.covers_whole_server(server))
    }

    pub fn has_tool(&self, server: &str, tool: &str) -> bool {
        self.patterns().any(|pattern| pattern.covers(server, Some(tool)))
    }

    pub fn has_toolset(&self, toolset: &str) -> bool {
        self.0.iter().any(|grant| grant.covers_toolset(toolset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(patterns: &[&str]) -> Grants {
        Grants::new(patterns.iter().map(|text| Grant::parse(text).unwrap()).collect())
    }

    #[test]
    fn a_server_means_all_it_has_and_a_tool_means_that_tool() {
        let grants = grants(&["std", "search/query", "git-*/read_*"]);
        assert!(grants.has_tool("std", "anything") && grants.has_whole_server("std"));
        assert!(grants.sees("search") && !grants.has_whole_server("search"));
        assert!(grants.has_tool("search", "query") && !grants.has_tool("search", "query2"));
        assert!(grants.has_tool("git-main", "read_file") && !grants.has_tool("git-main", "write"));
        assert!(!grants.sees("git") && !grants.sees("stdx") && !grants.has_tool("other", "query"));
    }

    #[test]
    fn nothing_is_granted_unless_it_is_said() {
        assert!(!Grants::default().sees("std"));
        assert!(Grants::everything().has_whole_server("std"));
    }

    #[test]
    fn a_toolset_gives_its_own_tools_and_no_server() {
        let tenant = grants(&["toolset:research", "toolset:team-*"]);
        assert!(tenant.has_toolset("research") && tenant.has_toolset("team-a"));
        assert!(!tenant.has_toolset("research2") && !tenant.has_toolset("other"));
        assert!(!tenant.sees("research") && !tenant.sees("toolset:research"));
        assert!(Grants::everything().has_toolset("research"));
        assert!(!grants(&["search", "*/query"]).has_toolset("research"));
        assert_eq!(Grant::parse("toolset:a").unwrap().to_string(), "toolset:a");
        for text in ["toolset:", "toolset:a/b", "toolset:a b", "Toolset:a"] {
            let error = Grant::parse(text).unwrap_err().to_string();
            assert!(error.contains("`toolset:research`"), "{error}");
        }
        // Limits go by the names of servers.
        assert!(Pattern::parse("toolset:a").is_err());
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*ab", "aab", true),
            ("a**b", "ab", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} against {text}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_explained() {
        for text in ["", "/", "/tool", "std/", "a b", "std/a b", "ü", "std/\n", &"x".repeat(301)] {
            let error = Pattern::parse(text).unwrap_err().to_string();
            assert!(error.contains("`search/query`"), "{error}");
        }
        assert_eq!(Pattern::parse("std/a/b").unwrap().to_string(), "std/a/b");
    }
}
