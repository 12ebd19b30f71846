//! The errors of calls through a toolset.

use super::arguments::ArgumentsError;

#[derive(Debug, thiserror::Error)]
pub enum ToolsetError {
    #[error("there is no toolset `{toolset}`; GET /v1/toolsets lists those you can use")]
    NotFound { toolset: String },
    #[error(
        "toolset `{toolset}` has no tool `{tool}`; GET /v1/toolsets/{toolset}/tools lists those it \
         has"
    )]
    NoTool { toolset: String, tool: String },
    /// The toolset does not take these arguments.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
}

impl ToolsetError {
    /// Returns the stable code that callers match on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "toolset_not_found",
            Self::NoTool { .. } => "tool_not_found",
            Self::Arguments(_) => "invalid_arguments",
        }
    }
}
