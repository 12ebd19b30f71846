//! Requests about the skills of a pinned server: those that are not approved are held back.

use serde_json::value::RawValue;

use super::{Call, CallError, Operation, Reply};
use crate::backend::Ready;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::mcp::method;
use crate::protocol::mcp::params::text_of;

impl Call {
    /// Returns the resource that the call is about, if its server is pinned and has skills.
    fn pinned_uri(&self, ready: &Ready) -> Option<String> {
        let method = match &self.operation {
            Operation::Tool { .. } => return None,
            operation => operation.method(),
        };
        let is_about = [method::RESOURCES_READ, method::SKILLS_GET, method::DIRECTORY_READ];
        let has_skills = || ready.about.own_words.declared().has(method::SKILLS_LIST);
        if !is_about.contains(&method) || !self.server.config().pin || !has_skills() {
            return None;
        }
        let params = format!("{{{}}}", self.others.trim_start_matches(','));
        let members = Members::parse(&params).ok()?;
        Some(text_of(members.get("uri")?)?.into_owned())
    }

    /// Refuses a request about a skill that is not approved, or that its server does not list.
    pub(super) fn refuse_if_skill_held(&self, ready: &Ready) -> Result<(), CallError> {
        let Some(uri) = self.pinned_uri(ready) else { return Ok(()) };
        let skills = &ready.tools.skills;
        let may = match self.operation.method() {
            method::SKILLS_GET => skills.get(&uri).is_some_and(|skill| !skill.is_held()),
            _ => skills.may_read(&uri),
        };
        if may { Ok(()) } else { Err(self.skill_held(uri)) }
    }

    /// Refuses a manifest that is not the approved one. The server's skills are listed again then,
    /// so that the operator hears of it.
    pub(super) fn unless_manifest_differs(
        &self,
        ready: &Ready,
        reply: Reply,
    ) -> Result<Reply, CallError> {
        let uri = self.pinned_uri(ready).filter(|_| self.operation.method() == method::SKILLS_GET);
        let Some(uri) = uri else { return Ok(reply) };
        let result = std::str::from_utf8(&reply.result).unwrap_or_default();
        let entry = Members::parse(result).ok().and_then(|it| it.get("skill").map(RawValue::get));
        if entry.is_some_and(|entry| ready.tools.skills.is_approved(entry)) {
            return Ok(reply);
        }
        ready.connection.note_tools_changed();
        Err(self.skill_held(uri))
    }

    fn skill_held(&self, uri: String) -> CallError {
        CallError::ToolHeld { server: self.server.id().to_string(), tool: uri }
    }
}
