//! Whether a server answers beside its calls, for `trunkline check --call`.

use std::str::FromStr;

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use crate::backend::Ready;
use crate::backend::supervise::serial::trial::{CALLS, Pings, call_and_ping};
use crate::common::ids::ServerId;
use crate::pins::printable;

/// A call that the operator lets `check` make.
#[derive(Clone, Debug)]
pub(super) struct TrialCall {
    pub(super) server: ServerId,
    tool: String,
    /// A JSON object.
    arguments: String,
}

/// The pings beside the calls, or why a call failed.
pub(super) struct Trial(Result<Pings, String>);

impl FromStr for TrialCall {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (target, arguments) = text.split_once(' ').unwrap_or((text, "{}"));
        let Some((server, tool)) = target.split_once('/') else {
            bail!("name the tool, as in `std/sleep {{\"ms\":500}}`")
        };
        serde_json::from_str::<Map<String, Value>>(arguments)
            .context("the arguments are no JSON object")?;
        let (server, tool) = (ServerId::parse(server)?, tool.to_owned());
        Ok(Self { server, tool, arguments: arguments.to_owned() })
    }
}

impl TrialCall {
    pub(super) async fn make(&self, ready: &Ready) -> Trial {
        Trial(call_and_ping(ready, &self.tool, &self.arguments).await)
    }
}

impl Trial {
    pub(super) fn render(&self, call: &TrialCall) -> String {
        let (server, tool) = (&call.server, printable(&call.tool));
        match &self.0 {
            Err(error) => {
                format!("\n{server}: a call of `{tool}` failed: {}\n", printable(error))
            }
            Ok(pings) if pings.are_late() => format!(
                "\n{server} looks serial: beside {CALLS} calls of `{tool}` a ping took {:.1} s. \
                 Each call delays all tenants; see `sharing`, `instances` and `max_in_flight`\n",
                pings.longest.as_secs_f64()
            ),
            Ok(_) => format!(
                "\n{server} does not look serial: it answered pings beside {CALLS} calls of \
                 `{tool}`; calls of less than half a second show little\n"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_by_server_tool_and_arguments() {
        let call: TrialCall = "std/sleep {\"ms\": 5}".parse().unwrap();
        assert_eq!((call.server.as_str(), &*call.tool), ("std", "sleep"));
        assert_eq!(call.arguments, "{\"ms\": 5}");
        assert_eq!("std/uuid".parse::<TrialCall>().unwrap().arguments, "{}");
        for bad in ["std", "std/sleep 5", "S td/x", "/x"] {
            assert!(bad.parse::<TrialCall>().is_err(), "{bad}");
        }
    }
}
