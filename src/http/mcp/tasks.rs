//! Tasks of servers. A client gets each under an id of the gateway's: the server's own, sealed with
//! the server, the tool and the run of the process. So another tenant's task is an unknown one, at
//! any other endpoint and after the end of its process, too.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::McpRequest;
use super::capabilities::supported_capabilities;
use super::rpc::RpcError;
use crate::common::ids::{CallId, TenantId};
use crate::common::seal::{Purpose, Sealer};
use crate::gateway::CallError;
use crate::gateway::extension::TaskPlace;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::{MISSING_CLIENT_CAPABILITY, extensions, meta};
use crate::toolsets::ChangedTool;

const TASK_ID: &str = "taskId";
/// The longest id of a server's task. Clients repeat the sealed id in a header.
const ID_LEN_MAX: usize = 1024;

/// Returns whether the client of a modern request declares the extension.
pub(super) fn takes_tasks(request: &McpRequest<'_>) -> bool {
    let capabilities = request.params.meta(meta::CLIENT_CAPABILITIES);
    let capabilities = capabilities.map_or("{}", RawValue::get);
    supported_capabilities(capabilities, &request.http.scope, request.era).1.tasks
}

/// Returns the error for a client that asks about tasks and does not declare the extension.
pub(super) fn tasks_not_declared() -> RpcError {
    let message = "the client does not declare the extension `io.modelcontextprotocol/tasks`";
    let error = RpcError::new(MISSING_CLIENT_CAPABILITY, message);
    let required = json!({"extensions": {extensions::TASKS: {}}});
    error.with_data(&json!({"requiredCapabilities": required}))
}

/// The task that an id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskRef {
    OfServer {
        server: String,
        /// As the server names it.
        id: String,
        place: TaskPlace,
    },
    /// A call of the gateway's, which has a record.
    OfCall { id: CallId },
}

/// The form in which a task is sealed.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Sealed<'a> {
    OfServer {
        server: Cow<'a, str>,
        task: Cow<'a, str>,
        tool: Cow<'a, str>,
        exposed: bool,
        run: u64,
    },
    OfCall {
        call: Cow<'a, str>,
    },
}

/// Seals and opens the ids of one tenant's tasks, at one endpoint.
pub(super) struct TaskSeal {
    sealer: Arc<Sealer>,
    tenant: TenantId,
    endpoint: String,
}

impl TaskSeal {
    pub(super) fn of(request: &McpRequest<'_>) -> Self {
        let endpoint = request.http.scope.label().into_owned();
        let tenant = request.caller.tenant.id.clone();
        Self { sealer: request.http.app.sealer.clone(), tenant, endpoint }
    }

    fn context(&self) -> Vec<u8> {
        // No name of an endpoint has a zero byte.
        [self.endpoint.as_bytes(), b"\0", self.tenant.unique_text().as_bytes()].concat()
    }

    pub(super) fn seal(&self, task: &TaskRef) -> String {
        let call;
        let sealed = match task {
            TaskRef::OfServer { server, id, place } => Sealed::OfServer {
                server: server.into(),
                task: id.into(),
                tool: (&place.tool).into(),
                exposed: place.is_exposed,
                run: place.run,
            },
            TaskRef::OfCall { id } => {
                call = id.to_string();
                Sealed::OfCall { call: call.into() }
            }
        };
        let plain = serde_json::to_vec(&sealed).expect("plain data");
        self.sealer.seal(Purpose::Task, &self.context(), &plain)
    }

    /// Returns `None` for an id that was not given to this tenant at this endpoint.
    pub(super) fn open(&self, id: &str) -> Option<TaskRef> {
        let plain = self.sealer.open(Purpose::Task, &self.context(), id)?;
        Some(match serde_json::from_slice(&plain).ok()? {
            Sealed::OfServer { server, task, tool, exposed, run } => TaskRef::OfServer {
                server: server.into_owned(),
                id: task.into_owned(),
                place: TaskPlace { tool: tool.into_owned(), is_exposed: exposed, run },
            },
            Sealed::OfCall { call } => TaskRef::OfCall { id: CallId::parse(&call)? },
        })
    }
}

/// Translates the tasks in a server's results.
pub(super) struct TaskTranslation {
    pub(super) seal: TaskSeal,
    pub(super) server: String,
    pub(super) tool: String,
    /// Whether `tool` is the name that it has where all servers are shown together.
    pub(super) is_exposed: bool,
    /// The id that the client has given, in a request about a task.
    pub(super) given: Option<String>,
}

impl TaskTranslation {
    /// Returns the result that makes a task, with the id that the client gets.
    pub(super) fn created(&self, result: &str, run: u64) -> Result<String, RpcError> {
        let broken = |what: &str| RpcError::from(CallError::protocol(what));
        let members = Members::parse(result).map_err(|_| broken("its task is ambiguous"))?;
        let id = members.get(TASK_ID).and_then(text_of);
        let id = id.ok_or_else(|| broken("its task has no `taskId` that is a string"))?;
        if id.len() > ID_LEN_MAX {
            return Err(broken("its `taskId` is too long"));
        }
        let place = TaskPlace { tool: self.tool.clone(), is_exposed: self.is_exposed, run };
        let task = TaskRef::OfServer { server: self.server.clone(), id: id.into_owned(), place };
        let sealed = Value::from(self.seal.seal(&task)).to_string();
        Ok(members.rewrite(|_, _| MemberChange::Keep, &[(TASK_ID, &sealed)]))
    }

    /// Returns what a server says of a task, for a client that knows it by another id.
    pub(super) fn told(
        &self,
        result: &str,
        changed: Option<&ChangedTool>,
    ) -> Result<String, RpcError> {
        let broken = |_| RpcError::from(CallError::protocol("its task is ambiguous"));
        let members = Members::parse(result).map_err(broken)?;
        let id = Value::from(self.given.as_deref().unwrap_or_default()).to_string();
        let change = |name: &str, value: &RawValue| match (name, changed) {
            (TASK_ID, _) => MemberChange::Replace(Cow::Owned(id.clone())),
            ("result", Some(changed)) => {
                let result = changed.result.apply(value.get(), None).into_owned();
                MemberChange::Replace(Cow::Owned(result))
            }
            _ => MemberChange::Keep,
        };
        Ok(members.rewrite(change, &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(sealer: &Arc<Sealer>, tenant: &str, endpoint: &str) -> TaskSeal {
        let (tenant, endpoint) = (TenantId::testing(tenant), endpoint.to_owned());
        TaskSeal { sealer: sealer.clone(), tenant, endpoint }
    }

    #[test]
    fn a_task_is_known_to_its_tenant_at_its_endpoint_alone() {
        let sealer = Arc::new(Sealer::random());
        let ours = seal(&sealer, "acme", "a");
        let place = TaskPlace { tool: "t".to_owned(), is_exposed: false, run: u64::MAX };
        let of_server = TaskRef::OfServer { server: "a".to_owned(), id: "1".to_owned(), place };
        for task in [of_server, TaskRef::OfCall { id: CallId::generate() }] {
            let id = ours.seal(&task);
            assert_eq!(ours.open(&id), Some(task));
            for (tenant, endpoint) in [("other", "a"), ("acme", "b"), ("acme", ""), ("other", "")] {
                assert_eq!(seal(&sealer, tenant, endpoint).open(&id), None);
            }
            assert_eq!(ours.open(&format!("{id}x")), None);
            assert_eq!(ours.open("1"), None);
        }
    }

    #[test]
    fn no_id_of_a_servers_reaches_a_client() {
        let sealer = Arc::new(Sealer::random());
        let mut tasks = TaskTranslation {
            seal: seal(&sealer, "acme", "a"),
            server: "a".to_owned(),
            tool: "t".to_owned(),
            is_exposed: false,
            given: None,
        };
        let made = r#"{"resultType":"task","taskId":"own-1","status":"working","ttlMs":1}"#;
        let created = tasks.created(made, 7).unwrap();
        assert!(!created.contains("own-1") && created.contains(r#""ttlMs":1"#), "{created}");
        let created: Value = serde_json::from_str(&created).unwrap();
        let opened = tasks.seal.open(created["taskId"].as_str().unwrap());
        let place = TaskPlace { tool: "t".to_owned(), is_exposed: false, run: 7 };
        let (server, id) = ("a".to_owned(), "own-1".to_owned());
        assert_eq!(opened, Some(TaskRef::OfServer { server, id, place }));
        tasks.given = Some("theirs".to_owned());
        let told = tasks.told(r#"{"taskId":"own-1","status":"working"}"#, None).unwrap();
        assert_eq!(told, r#"{"taskId":"theirs","status":"working"}"#);
        for odd in ["{}", r#"{"taskId":7}"#, r#"{"taskId":"a","taskId":"b"}"#] {
            assert!(tasks.created(odd, 7).is_err(), "{odd}");
        }
        assert!(tasks.created(&format!(r#"{{"taskId":"{}"}}"#, "x".repeat(1025)), 7).is_err());
    }
}
