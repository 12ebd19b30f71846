//! A server's tools, listed from the server and kept.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::arguments::ArgumentsSchema;
use super::left_out::{LeftOutTools, UsableTools};
pub use super::list_error::ListError;
use super::list_error::TOOLS;
use super::skills::SkillSet;
use crate::backend::Environment;
use crate::backend::connection::{Answer, Connection};
use crate::common::ids::ServerId;
use crate::common::offload::Offload;
use crate::pins::Hash;
use crate::protocol::mcp::headers::HeaderParams;
use crate::protocol::mcp::names;
use crate::protocol::mcp::pages::Pages;
use crate::protocol::mcp::requests::Dialect;
use crate::protocol::mcp::results::{
    Caching, ToolsPage, input_schema, is_repeatable, requires_task, tool_name,
};
use crate::telemetry::metrics::ServerMetrics;
use crate::telemetry::tools::ToolMetrics;

/// The most tools of one server: each costs memory here. Clients get them in pages.
const TOOLS_MAX: usize = 20_000;
/// The longest name of a tool. The specification recommends up to 128.
const NAME_LEN_MAX: usize = 256;

/// The estimate of a call's time before the first one.
pub const TYPICAL_TIME: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Tool {
    name: String,
    /// The name as a JSON string.
    pub name_json: String,
    /// Set by the first call.
    metrics: OnceLock<Arc<ToolMetrics>>,
    /// Arguments that modern clients repeat in headers.
    pub header_params: HeaderParams,
    /// Whether it is read-only or idempotent, by its own word.
    is_repeatable: bool,
    /// The recent time of its calls, in microseconds.
    typical_micros: AtomicU64,
    definition: Box<RawValue>,
    /// The hash of the definition; computed when first needed.
    hash: OnceLock<Hash>,
    is_held: AtomicBool,
    /// Of its arguments; compiled by the first call that is checked. `None` if it cannot be used.
    schema: OnceCell<Option<ArgumentsSchema>>,
}

impl Tool {
    /// Makes one that is only compared and held back.
    pub(super) fn plain(name: String, definition: Box<RawValue>) -> Self {
        Self {
            name,
            name_json: String::new(),
            metrics: OnceLock::new(),
            header_params: HeaderParams::Valid(vec![]),
            is_repeatable: false,
            typical_micros: AtomicU64::new(TYPICAL_TIME.as_micros() as u64),
            definition,
            hash: OnceLock::new(),
            is_held: AtomicBool::new(false),
            schema: OnceCell::new(),
        }
    }

    /// Returns the name that its server gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text that its server wrote.
    pub fn definition(&self) -> &RawValue {
        &self.definition
    }

    pub fn hash(&self) -> Hash {
        *self.hash.get_or_init(|| Hash::of(self.definition.get()))
    }

    /// Returns the schema of its arguments, compiled once; `None` if it cannot be used.
    pub async fn arguments_schema(
        &self,
        server: &ServerId,
        offload: &Offload,
    ) -> Option<&ArgumentsSchema> {
        let compile = async || {
            let schema = input_schema(&self.definition)?.get().to_owned();
            match offload.run(move || ArgumentsSchema::compile(&schema)).await {
                Ok(schema) => Some(schema),
                Err(reason) => {
                    let tool = &*self.name;
                    tracing::warn!(
                        %server, tool, reason,
                        "the arguments of tool `{tool}` of server `{server}` are not checked: its \
                         `inputSchema` cannot be used: {reason}"
                    );
                    None
                }
            }
        };
        self.schema.get_or_init(compile).await.as_ref()
    }

    /// Returns whether it is held back: nobody sees it or may call it.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Returns whether that was different before.
    pub(crate) fn set_held(&self, is_held: bool) -> bool {
        self.is_held.swap(is_held, Ordering::AcqRel) != is_held
    }

    /// Returns the recent time of its calls.
    pub fn typical(&self) -> Duration {
        Duration::from_micros(self.typical_micros.load(Ordering::Relaxed))
    }

    /// Returns whether it is read-only or idempotent, by its own word.
    pub fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    pub fn metrics(&self, server: &ServerMetrics) -> &ToolMetrics {
        self.metrics.get_or_init(|| server.tools.of(&self.name))
    }

    pub fn note_time(&self, took: Duration) {
        let (old, new) = (self.typical_micros.load(Ordering::Relaxed), took.as_micros() as u64);
        // Each call moves it by an eighth. Losing one to a race does no harm.
        self.typical_micros.store(old - old / 8 + new / 8, Ordering::Relaxed);
    }
}

/// Names what a list of tools shows: the list, and which of its tools are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ToolsVersion {
    list: u64,
    held: u64,
}

/// Numbers lists of tools. No number is used twice.
static LISTS: AtomicU64 = AtomicU64::new(1);

/// All tools of one server, in the server's order.
#[derive(Debug, Default)]
pub struct ToolSet {
    /// 0 for a set that was not listed by a server: it is empty.
    number: u64,
    /// Bytes of all definitions.
    bytes: usize,
    by_name: HashMap<String, Arc<Tool>>,
    in_order: Vec<Arc<Tool>>,
    /// Their names where all servers are shown together, in the same order.
    exposed: Vec<String>,
    by_exposed: HashMap<String, Arc<Tool>>,
    caching: Caching,
    listed: Option<Instant>,
    left_out: LeftOutTools,
    /// The skills of a pinned server; none of any other.
    pub skills: SkillSet,
}

impl ToolSet {
    /// Asks a server for all pages of its list. With `is_pinned`, unapproved tools are held back.
    pub async fn list(
        connection: &Arc<Connection>,
        dialect: &Dialect,
        deadline: Instant,
        server: &ServerId,
        environment: &Environment,
        is_pinned: bool,
    ) -> Result<Arc<Self>, ListError> {
        let mut tools = match SkillSet::is_alone(connection) {
            false => Self::read(connection, dialect, deadline, server).await?,
            true => Self::default(),
        };
        if is_pinned {
            tools.skills = SkillSet::read(connection, dialect, deadline, server).await;
        }
        let tools = Arc::new(tools);
        if is_pinned {
            let Environment { pins, tenant, .. } = environment;
            pins.add_listed(server, tenant, &tools, connection, deadline).await;
        }
        Ok(tools)
    }

    async fn read(
        connection: &Arc<Connection>,
        dialect: &Dialect,
        deadline: Instant,
        server: &ServerId,
    ) -> Result<Self, ListError> {
        let usable = UsableTools::of(connection, dialect);
        let mut tools = Self { caching: Caching::ANY, ..Self::default() };
        let mut pages = Pages::default();
        let mut cursor: Option<String> = None;
        loop {
            let request = |id| dialect.tools_list(id, cursor.as_deref());
            let page = match connection.request(deadline, request).await? {
                Answer::Result(page) => page,
                Answer::Error(error) => return Err(ListError::refused(TOOLS, &error)),
            };
            pages.count(page.len()).map_err(ListError::endless(TOOLS))?;
            (tools, cursor) = tools.with_page(&connection.offload, page, usable).await?;
            let Some(next) = &cursor else { break };
            if tools.in_order.len() == TOOLS_MAX {
                tools.left_out.add("all further pages", too_many());
                break;
            }
            pages.follow(next).map_err(ListError::endless(TOOLS))?;
        }
        if !tools.left_out.is_empty() {
            let (count, names) = (tools.left_out.len(), tools.left_out.to_string());
            tracing::warn!(
                %server, count,
                "server `{server}` has tools that are left out: {names}"
            );
        }
        tools.expose(server);
        tools.listed = Some(Instant::now());
        tools.number = LISTS.fetch_add(1, Ordering::Relaxed);
        tools.bytes = tools.all().map(|tool| tool.definition.get().len()).sum();
        Ok(tools)
    }

    /// Returns the tool of that name, also if it is held back.
    pub fn get(&self, name: &str) -> Option<&Arc<Tool>> {
        self.by_name.get(name)
    }

    /// Returns the tool with that name where all servers are shown together, also if it is held
    /// back.
    pub fn exposed_as(&self, name: &str) -> Option<&Arc<Tool>> {
        self.by_exposed.get(name)
    }

    /// Returns the tools that are not held back, by their names where all servers are shown
    /// together.
    pub fn exposed(&self) -> impl Iterator<Item = (&str, &Tool)> {
        let exposed = self.exposed.iter().map(String::as_str).zip(self.all());
        exposed.filter(|(_, tool)| !tool.is_held())
    }

    /// Returns the tools that the server lists and nobody sees.
    pub fn left_out(&self) -> &LeftOutTools {
        &self.left_out
    }

    /// Returns the version of what a list of them shows.
    pub fn version(&self) -> ToolsVersion {
        let mut held = DefaultHasher::new();
        let all = self.all().enumerate();
        all.filter(|(_, tool)| tool.is_held()).for_each(|(index, _)| held.write_usize(index));
        ToolsVersion { list: self.number, held: held.finish() }
    }

    /// Returns the bytes of all definitions.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how long the list may be kept, and by whom.
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Returns whether the list has expired.
    pub fn is_stale(&self) -> bool {
        self.listed
            .is_some_and(|listed| listed.elapsed().as_millis() > u128::from(self.caching.ttl_ms))
    }

    /// Returns the tools that are not held back, in the server's order.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.all().filter(|tool| !tool.is_held())
    }

    /// Returns all tools, also those that are held back.
    pub fn all(&self) -> impl Iterator<Item = &Tool> {
        self.in_order.iter().map(|tool| &**tool)
    }

    /// Returns everything that pins hold back: tools, and skills by their URIs.
    pub fn pinned(&self) -> impl Iterator<Item = &Tool> {
        self.all().chain(self.skills.iter())
    }

    /// Returns the names of tools that are not held back, in the server's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(Tool::name)
    }

    /// Returns whether another list says the same.
    pub fn is_like<'a>(&'a self, other: &'a Self) -> bool {
        let texts = |tools: &'a Self| tools.in_order.iter().map(|tool| tool.definition.get());
        texts(self).eq(texts(other))
    }

    /// Returns how many are held back.
    pub fn held_len(&self) -> usize {
        self.all().filter(|tool| tool.is_held()).count()
    }

    /// Adds a page, a long one offloaded. Returns the cursor of the next page.
    async fn with_page(
        mut self,
        offload: &Offload,
        page: Bytes,
        usable: UsableTools,
    ) -> Result<(Self, Option<String>), ListError> {
        let len = page.len();
        let add_page = move || {
            self.caching = self.caching.and(Caching::of(&String::from_utf8_lossy(&page)));
            let page: ToolsPage = serde_json::from_slice(&page)
                .map_err(|error| ListError::malformed(TOOLS, &error))?;
            for definition in page.tools {
                self.add(definition, usable);
            }
            Ok((self, page.next_cursor))
        };
        offload.run_if_long(len, add_page).await
    }

    /// Adds a tool, unless it cannot be used. One that cannot takes no other away.
    fn add(&mut self, definition: Box<RawValue>, usable: UsableTools) {
        let Some(name) = tool_name(&definition) else {
            let place = format!("#{}", self.in_order.len() + self.left_out.len() + 1);
            return self.left_out.add(&place, "it has no name that is a text");
        };
        let refusal = if name.len() > NAME_LEN_MAX {
            Some(format!("its name is over {NAME_LEN_MAX} bytes long"))
        } else if name.contains(char::is_control) {
            Some("its name has control characters".to_owned())
        } else if self.by_name.contains_key(&name) {
            Some("there is one of that name before".to_owned())
        } else if !usable.has_tasks && requires_task(&definition) {
            Some(
                "it can be called only as a task, and the server does not declare the extension"
                    .to_owned(),
            )
        } else if self.in_order.len() == TOOLS_MAX {
            Some(too_many())
        } else {
            None
        };
        if let Some(why) = refusal {
            return self.left_out.add(&name, why);
        }
        let name_json = serde_json::Value::from(name.as_str()).to_string();
        let header_params =
            input_schema(&definition).map_or(HeaderParams::Valid(vec![]), HeaderParams::of);
        if let (true, HeaderParams::Invalid(why)) = (usable.checks_headers, &header_params) {
            return self.left_out.add(&name, why.to_string());
        }
        let is_repeatable = is_repeatable(&definition);
        let plain = Tool::plain(name.clone(), definition);
        let tool = Arc::new(Tool { name_json, header_params, is_repeatable, ..plain });
        self.in_order.push(tool.clone());
        self.by_name.insert(name, tool);
    }

    fn expose(&mut self, server: &ServerId) {
        // Tools that are held back, too: they must not change the names of others.
        let names = self.all().map(Tool::name);
        self.exposed = names::exposed_tool_names(server.as_str(), names);
        let tools = self.exposed.iter().cloned().zip(self.in_order.iter().cloned());
        self.by_exposed = tools.collect();
    }
}

#[cfg(test)]
impl ToolsVersion {
    pub fn testing(list: u64) -> Self {
        Self { list, held: 0 }
    }
}

fn too_many() -> String {
    format!("a server may have {TOOLS_MAX} tools")
}

#[cfg(test)]
#[path = "tests/tools.rs"]
mod tests;
