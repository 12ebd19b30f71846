//! The skills of a pinned server. Their manifests, with the digests of their files, are held back
//! until they are approved, as definitions of tools are. Of any other server nothing is kept.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::list_error::{ListError, SKILLS};
use super::tools::Tool;
use crate::backend::connection::{Answer, Connection};
use crate::common::ids::ServerId;
use crate::pins::Hash;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::mcp::method;
use crate::protocol::mcp::pages::Pages;
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::requests::{CallMeta, Dialect};

/// The most skills of a pinned server. Further ones are held back.
const SKILLS_MAX: usize = 10_000;
const URI_LEN_MAX: usize = 2048;
/// The file that is the skill itself, in its directory.
const SKILL_FILE: &str = "/SKILL.md";
const SCHEME: &str = "skill://";

/// Skills by their URIs, in the server's order.
#[derive(Debug, Default)]
pub struct SkillSet {
    in_order: Vec<Arc<Tool>>,
    by_uri: HashMap<String, Arc<Tool>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SkillsPage {
    skills: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

impl SkillSet {
    /// Returns whether a server has skills and no tools.
    pub(super) fn is_alone(connection: &Connection) -> bool {
        let declared = connection.declared.get();
        declared.is_some_and(|it| it.has(method::SKILLS_LIST) && !it.has_tools)
    }

    /// Asks a server that declares skills for all of them. If that fails, none is known, so that
    /// all are held back.
    pub(super) async fn read(
        connection: &Arc<Connection>,
        dialect: &Dialect,
        deadline: Instant,
        server: &ServerId,
    ) -> Self {
        let declared = connection.declared.get();
        if !declared.is_some_and(|declared| declared.has(method::SKILLS_LIST)) {
            return Self::default();
        }
        match Self::list(connection, dialect, deadline).await {
            Ok(skills) => skills,
            Err(error) => {
                let error = error.to_string();
                let error: String = error.chars().take(200).collect();
                tracing::warn!(
                    %server, %error,
                    "the skills of server `{server}` cannot be listed: all are held back"
                );
                Self::default()
            }
        }
    }

    async fn list(
        connection: &Arc<Connection>,
        dialect: &Dialect,
        deadline: Instant,
    ) -> Result<Self, ListError> {
        let (mut skills, mut pages) = (Self::default(), Pages::default());
        let mut cursor: Option<String> = None;
        loop {
            let members = cursor.as_ref().map(|cursor| format!(",\"cursor\":{}", json!(cursor)));
            let members = members.unwrap_or_default();
            let request =
                |id| dialect.request(id, method::SKILLS_LIST, &members, &CallMeta::default());
            let page = match connection.request(deadline, request).await? {
                Answer::Result(page) => page,
                Answer::Error(error) => return Err(ListError::refused(SKILLS, &error)),
            };
            pages.count(page.len()).map_err(ListError::endless(SKILLS))?;
            let len = page.len();
            let add = move || skills.with_page(&page).map(|cursor| (skills, cursor));
            (skills, cursor) = connection.offload.run_if_long(len, add).await?;
            match &cursor {
                Some(next) if skills.in_order.len() < SKILLS_MAX => {
                    pages.follow(next).map_err(ListError::endless(SKILLS))?;
                }
                _ => return Ok(skills),
            }
        }
    }

    fn with_page(&mut self, page: &Bytes) -> Result<Option<String>, ListError> {
        let page: SkillsPage =
            serde_json::from_slice(page).map_err(|error| ListError::malformed(SKILLS, &error))?;
        for entry in page.skills {
            let uri = uri_of(entry.get()).filter(|uri| uri.len() <= URI_LEN_MAX);
            let Some(uri) = uri.filter(|uri| !uri.contains(char::is_control)) else { continue };
            if self.in_order.len() < SKILLS_MAX && !self.by_uri.contains_key(&uri) {
                let skill = Arc::new(Tool::plain(uri.clone(), entry));
                self.in_order.push(skill.clone());
                self.by_uri.insert(uri, skill);
            }
        }
        Ok(page.next_cursor)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.in_order.iter().map(|skill| &**skill)
    }

    pub fn get(&self, uri: &str) -> Option<&Arc<Tool>> {
        self.by_uri.get(uri)
    }

    /// Returns whether an entry of a list, or of `skills/get`, is one that is not held back.
    pub fn is_approved(&self, entry: &str) -> bool {
        let skill = uri_of(entry).and_then(|uri| self.by_uri.get(&uri).cloned());
        skill.is_some_and(|it| !it.is_held() && it.hash() == Hash::of(entry))
    }

    /// Returns whether a file or a directory may be read: of an approved skill, or of none.
    pub fn may_read(&self, uri: &str) -> bool {
        let root = |skill: &Tool| {
            let uri = skill.name();
            uri.strip_suffix(SKILL_FILE).unwrap_or(uri).len()
        };
        let holds = |skill: &&Tool| {
            let root = &skill.name()[..root(skill)];
            let rest = uri.strip_prefix(root);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Skills may be nested: each that holds the file must be approved.
        let (mut is_of_one, mut is_held) = (false, false);
        for skill in self.iter().filter(holds) {
            (is_of_one, is_held) = (true, is_held || skill.is_held());
        }
        !is_held && (is_of_one || !uri.starts_with(SCHEME))
    }
}

fn uri_of(entry: &str) -> Option<String> {
    let members = Members::parse(entry).ok()?;
    Some(text_of(members.get("uri")?)?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skills(entries: &[&str]) -> SkillSet {
        let mut skills = SkillSet::default();
        let page = format!("{{\"skills\":[{}]}}", entries.join(","));
        assert_eq!(skills.with_page(&page.into()).unwrap(), None);
        skills
    }

    #[test]
    fn an_entry_is_approved_as_it_was_listed() {
        let entry = r#"{"uri":"skill://git/SKILL.md","frontmatter":{"name":"git"}}"#;
        let skills = skills(&[entry, r#"{"uri":7}"#, r#"{"uri":"a","uri":"b"}"#, entry]);
        assert_eq!(skills.iter().count(), 1);
        assert!(skills.is_approved(entry));
        // The same in other words.
        let spaced = r#"{ "frontmatter": {"name":"g\u0069t"}, "uri":"skill://git/SKILL.md" }"#;
        assert!(skills.is_approved(spaced));
        for other in [
            r#"{"uri":"skill://git/SKILL.md","frontmatter":{"name":"gti"}}"#,
            r#"{"uri":"skill://other/SKILL.md","frontmatter":{"name":"git"}}"#,
            "{}",
        ] {
            assert!(!skills.is_approved(other), "{other}");
        }
        skills.iter().for_each(|skill| _ = skill.set_held(true));
        assert!(!skills.is_approved(entry));
    }

    #[test]
    fn files_are_read_of_approved_skills_and_of_none() {
        let skills = skills(&[
            r#"{"uri":"skill://git/SKILL.md"}"#,
            r#"{"uri":"skill://git/deep/SKILL.md"}"#,
            r#"{"uri":"github://o/r/SKILL.md"}"#,
        ]);
        let may = |uri: &str| skills.may_read(uri);
        for uri in ["skill://git/SKILL.md", "skill://git/a.py", "skill://git", "github://o/r/x"] {
            assert!(may(uri), "{uri}");
        }
        assert!(may("file:///x") && may("github://o/other"));
        assert!(!may("skill://unlisted/SKILL.md") && !may("skill://gitx/SKILL.md"));
        skills.get("skill://git/deep/SKILL.md").unwrap().set_held(true);
        assert!(may("skill://git/a.py") && !may("skill://git/deep/b.py"));
        skills.get("skill://git/SKILL.md").unwrap().set_held(true);
        skills.get("github://o/r/SKILL.md").unwrap().set_held(true);
        assert!(!may("skill://git/a.py") && !may("skill://git") && !may("github://o/r/x"));
    }
}
