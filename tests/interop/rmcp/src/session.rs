//! One connection, with what the checks need of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CompletionContext, GetPromptRequestParams, ProgressNotificationParam,
    ProtocolVersion, ReadResourceRequestParams, ResourceContents,
};
use rmcp::service::{NotificationContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::Value;

use crate::Outcome;

pub struct Session {
    client: RunningService<RoleClient, Handler>,
    progress: Arc<Mutex<Vec<f64>>>,
}

/// The text of a tool's result, and whether it is an error.
pub struct Called {
    pub text: String,
    pub is_error: bool,
}

struct Handler {
    progress: Arc<Mutex<Vec<f64>>>,
}

impl ClientHandler for Handler {
    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.progress.lock().push(params.progress);
    }
}

impl Session {
    pub async fn connect(url: &str, era: &str) -> Outcome<Self> {
        let lifecycle = match era {
            "modern" => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: None,
            },
            _ => ClientLifecycleMode::Initialize,
        };
        let progress = Arc::<Mutex<Vec<f64>>>::default();
        let transport = StreamableHttpClientTransport::from_uri(url);
        let handler = Handler { progress: progress.clone() };
        let client = handler.serve_with_lifecycle(transport, lifecycle).await?;
        Ok(Self { client, progress })
    }

    pub async fn close(self) -> Outcome {
        self.client.cancel().await?;
        Ok(())
    }

    pub fn version(&self) -> Option<String> {
        self.client.peer_info().map(|info| info.protocol_version.to_string())
    }

    pub async fn tools(&self) -> Outcome<Vec<String>> {
        let tools = self.client.list_all_tools().await?;
        Ok(tools.into_iter().map(|it| it.name.into_owned()).collect())
    }

    pub async fn call(&self, name: String, arguments: &Value) -> Result<Called, ServiceError> {
        let mut params = CallToolRequestParams::new(name);
        params.arguments = arguments.as_object().cloned();
        let result = self.client.call_tool(params).await?;
        let texts = result.content.iter().filter_map(|it| it.as_text());
        let text = texts.map(|it| it.text.as_str()).collect();
        Ok(Called { text, is_error: result.is_error.unwrap_or(false) })
    }

    /// Returns whether the call was still waiting, and hence cancelled, when the time was over.
    pub async fn call_and_cancel(&self, name: String, arguments: &Value, after: Duration) -> bool {
        tokio::time::timeout(after, self.call(name, arguments)).await.is_err()
    }

    /// Calls, and gives the progress that was told until the result came. Each notification is
    /// handled in a task of its own, so their order is not what this SDK can tell.
    pub async fn progress_of(&self, name: String, arguments: &Value) -> Outcome<Vec<f64>> {
        self.progress.lock().clear();
        self.call(name, arguments).await?;
        let mut seen = self.progress.lock().clone();
        seen.sort_by(f64::total_cmp);
        Ok(seen)
    }

    pub async fn resources(&self) -> Outcome<Vec<String>> {
        let resources = self.client.list_all_resources().await?;
        Ok(resources.into_iter().map(|it| it.uri.clone()).collect())
    }

    pub async fn templates(&self) -> Outcome<Vec<String>> {
        let templates = self.client.list_all_resource_templates().await?;
        Ok(templates.into_iter().map(|it| it.uri_template.clone()).collect())
    }

    pub async fn read(&self, uri: String) -> Outcome<String> {
        let result = self.client.read_resource(ReadResourceRequestParams::new(uri)).await?;
        let texts = result.contents.into_iter().map(|it| match it {
            ResourceContents::TextResourceContents { text, .. } => text,
            _ => String::new(),
        });
        Ok(texts.collect())
    }

    pub async fn prompts(&self) -> Outcome<Vec<String>> {
        let prompts = self.client.list_all_prompts().await?;
        Ok(prompts.into_iter().map(|it| it.name).collect())
    }

    pub async fn prompt(&self, name: String, arguments: &Value) -> Outcome<String> {
        let mut params = GetPromptRequestParams::new(name);
        params.arguments = arguments.as_object().cloned();
        let result = self.client.get_prompt(params).await?;
        let texts = result.messages.iter().filter_map(|it| it.content.as_text());
        Ok(texts.map(|it| it.text.as_str()).collect())
    }

    pub async fn complete_prompt(
        &self,
        name: String,
        argument: &str,
        value: &str,
        context: &Value,
    ) -> Outcome<Vec<String>> {
        let context: Option<HashMap<String, String>> = serde_json::from_value(context.clone())?;
        let context = context.map(CompletionContext::with_arguments);
        let completion =
            self.client.complete_prompt_argument(name, argument, value, context).await?;
        Ok(completion.values)
    }

    pub async fn complete_template(
        &self,
        uri: String,
        argument: &str,
        value: &str,
    ) -> Outcome<Vec<String>> {
        Ok(self.client.complete_resource_simple(uri, argument, value).await?)
    }
}
