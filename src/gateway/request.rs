//! What is called, and how it is written for a server.

use std::sync::Arc;

use tokio::time::Instant;

use super::{CallError, Caller};
use crate::backend::Ready;
use crate::backend::connection::call_notifications::Listener;
use crate::backend::instance::tools::Tool;
use crate::common::ids::CallId;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{Frame, METHOD_NOT_FOUND, RawObject};
use crate::protocol::mcp::Era;
use crate::protocol::mcp::requests::CallMeta;

/// What is called.
pub struct Call {
    /// Names the call in answers and logs.
    pub id: CallId,
    /// The server's id, as the caller wrote it.
    pub server: String,
    /// What is asked of it.
    pub ask: Ask,
    /// Further members of `params`, checked: `,"name":value` each.
    pub others: String,
    /// What goes with it.
    pub meta: CallMeta,
    /// How much memory it takes while it waits, about.
    pub size: usize,
    /// Who hears what the server says meanwhile.
    pub listener: Option<Listener>,
    /// When it came in.
    pub arrived: Instant,
    /// When its answer is no longer of use.
    pub deadline: Instant,
    /// How far progress may move that.
    pub deadline_max: Option<Instant>,
}

/// What is asked of a server.
pub enum Ask {
    /// To run a tool.
    Tool {
        /// Which one.
        name: ToolName,
        /// Checked, otherwise untouched.
        arguments: RawObject,
        /// The headers that repeat arguments, where they must agree.
        mirrored: Option<Vec<(String, Vec<u8>)>>,
    },
    /// Anything else; all its parameters are in [`Call::others`].
    Method(&'static str),
}

/// How a caller names a tool.
pub enum ToolName {
    /// As its server does.
    Own(String),
    /// As it is called where all servers are shown together.
    Exposed(String),
}

impl Call {
    /// A request without anything that goes with it. `others` are its parameters, as in [`Call::others`].
    pub fn plain(server: String, method: &'static str, others: String, deadline: Instant) -> Self {
        Self {
            id: CallId::generate(),
            server,
            ask: Ask::Method(method),
            size: others.len(),
            others,
            meta: CallMeta::default(),
            listener: None,
            arrived: Instant::now(),
            deadline,
            deadline_max: None,
        }
    }

    /// The tool that is called, if one is. What the caller may not use is not there.
    pub(super) fn find_tool(
        &self,
        caller: &Caller,
        ready: &Ready,
    ) -> Result<Option<Arc<Tool>>, CallError> {
        let Ask::Tool { name, arguments, mirrored } = &self.ask else {
            if caller.tenant.may_use_all_of(&self.server) {
                return Ok(None);
            }
            // As of a server that has nothing but tools.
            let message = "Method not found".to_owned();
            let error = ErrorObject { code: METHOD_NOT_FOUND, message, data: None };
            return Err(CallError::Backend(error));
        };
        let (found, name) = match name {
            ToolName::Own(name) => (ready.tools.get(name), name),
            ToolName::Exposed(name) => (ready.tools.exposed_as(name), name),
        };
        let may_call = |tool: &&Arc<Tool>| caller.tenant.may_call(&self.server, tool.name());
        let Some(tool) = found.filter(may_call) else {
            let (server, tool) = (self.server.clone(), name.clone());
            return Err(CallError::ToolNotFound { server, tool });
        };
        self.must_not_be_held(Some(&**tool))?;
        if let Some(mirrored) = mirrored {
            let header = |name: &str| {
                mirrored
                    .iter()
                    .find(|(header, _)| header == name)
                    .map(|(_, value)| value.as_slice())
            };
            tool.header_params.check(arguments.as_str(), header)?;
        }
        Ok(Some(tool.clone()))
    }

    /// What was changed since it was approved is not called, also if the call has waited meanwhile.
    pub(super) fn must_not_be_held(&self, tool: Option<&Tool>) -> Result<(), CallError> {
        match tool.filter(|tool| tool.is_held()) {
            Some(tool) => {
                let (server, tool) = (self.server.clone(), tool.name().to_owned());
                Err(CallError::ToolHeld { server, tool })
            }
            None => Ok(()),
        }
    }

    /// The headers that repeat its arguments, where the server is to get them.
    pub(super) fn headers(
        &self,
        ready: &Ready,
        tool: Option<&Tool>,
    ) -> Result<Vec<(String, String)>, CallError> {
        match (&self.ask, tool) {
            (Ask::Tool { arguments, .. }, Some(tool))
                if ready.connection.has_headers()
                    && ready.dialect.version().era() == Era::Modern =>
            {
                Ok(tool.header_params.write(arguments.as_str())?)
            }
            _ => Ok(vec![]),
        }
    }

    pub(super) fn frame(
        &self,
        id: u64,
        ready: &Ready,
        tool: Option<&Tool>,
        meta: &CallMeta,
    ) -> Frame {
        match (&self.ask, tool) {
            (Ask::Tool { arguments, .. }, Some(tool)) => {
                ready.dialect.tools_call(id, &tool.name_json, arguments, &self.others, meta)
            }
            (Ask::Tool { .. }, None) => unreachable!("a tool that is not found is an error"),
            (Ask::Method(method), _) => ready.dialect.request(id, method, &self.others, meta),
        }
    }
}
