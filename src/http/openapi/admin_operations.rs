//! Every operation of administrators.

use serde_json::json;

use super::operation::{Describer, Operation, object, tenant_name, text};
use super::operations::{removed_secret, secret_value, usage_report};
use crate::common::policy::PolicyText;
use crate::http::admin::calls::RecentParams;
use crate::http::admin::keys::NewKeyRequest;
use crate::http::admin::live::{SecondView, ShareView};
use crate::http::admin::pins::Approval;
use crate::http::admin::reports::{AuditParams, EntryView, UsageParams};
use crate::http::admin::running::{CallsParams, LiveCallView};
use crate::http::rest::server_view::ServerView;
use crate::http::rest::toolsets::ToolsetView;
use crate::pins::PinView;
use crate::tenants::{KeyView, SecretView, TenantView};

pub(super) fn all(describer: &mut Describer) -> Vec<Operation> {
    let mut all = tenants(describer);
    all.extend(keys(describer));
    all.extend(secrets(describer));
    all.extend(pins(describer));
    all.extend(reports(describer));
    all.extend(operate());
    all.extend(live(describer));
    all
}

fn admin(route: (&'static str, &str), name: &str, summary: &str) -> Operation {
    Operation::new(route, "admin", &format!("admin_{name}"), summary)
}

fn tenants(describer: &mut Describer) -> Vec<Operation> {
    let (list, tenant) =
        (describer.list_of::<TenantView<'_>>("tenants"), describer.sent::<TenantView<'_>>());
    let change = describer.read::<PolicyText>();
    let mut new = change.clone();
    new["properties"]["id"] = tenant_name();
    new["required"] = json!(["id"]);
    let removed = object(&json!({"id": text(), "revoked_keys": {"type": "integer"}}));
    let one = "/admin/v1/tenants/{tenant}";
    vec![
        admin(("get", "/admin/v1/tenants"), "list_tenants", "Lists all tenants").answers(
            200,
            "The tenants",
            list,
        ),
        admin(("post", "/admin/v1/tenants"), "add_tenant", "Adds a tenant")
            .reads(true, new)
            .answers(201, "The tenant", tenant.clone()),
        admin(("get", one), "show_tenant", "Shows a tenant").answers(
            200,
            "The tenant",
            tenant.clone(),
        ),
        admin(("patch", one), "change_tenant", "Changes members of a tenant (RFC 7396)")
            .reads(false, change)
            .answers(200, "The tenant", tenant),
        admin(("delete", one), "remove_tenant", "Removes a tenant and revokes its keys")
            .answers(200, "Removed", removed),
    ]
}

fn keys(describer: &mut Describer) -> Vec<Operation> {
    let (list, key) = (describer.list_of::<KeyView<'_>>("keys"), describer.sent::<KeyView<'_>>());
    let new = describer.read::<NewKeyRequest>();
    let revoked = object(&json!({"id": text(), "state": text()}));
    let mut all = vec![];
    for (path, whose) in
        [("/admin/v1/tenants/{tenant}/keys", "tenant"), ("/admin/v1/admin-keys", "admin")]
    {
        all.push(admin(("get", path), &format!("list_{whose}_keys"), "Lists keys").answers(
            200,
            "The keys",
            list.clone(),
        ));
        all.push(
            admin(("post", path), &format!("create_{whose}_key"), "Makes a key, shown once")
                .reads(false, new.clone())
                .answers(201, "The key", key.clone()),
        );
    }
    let revoke = admin(("delete", "/admin/v1/keys/{key}"), "revoke_key", "Revokes a key");
    all.push(revoke.answers(200, "Revoked", revoked));
    all
}

fn secrets(describer: &mut Describer) -> Vec<Operation> {
    let list = describer.list_of::<SecretView>("secrets");
    let secret = describer.sent::<SecretView>();
    let path = "/admin/v1/tenants/{tenant}/servers/{server}/secrets";
    let one = format!("{path}/{{name}}");
    vec![
        admin(("get", path), "list_secrets", "Lists a tenant's secrets, without values").answers(
            200,
            "The secrets",
            list,
        ),
        admin(("put", &one), "set_secret", "Sets a tenant's secret")
            .reads(true, secret_value())
            .answers(200, "The secret, without its value", secret),
        admin(("delete", &one), "remove_secret", "Removes a tenant's secret").answers(
            200,
            "No secret",
            removed_secret(),
        ),
    ]
}

fn pins(describer: &mut Describer) -> Vec<Operation> {
    let list = describer.list_of::<PinView<'_>>("pins");
    let approval = describer.read::<Approval>();
    let tools = json!({"type": "array", "items": text()});
    let approved = object(&json!({"server": text(), "approved": tools}));
    let forgotten = object(&json!({"server": text(), "forgotten": {}}));
    let path = "/admin/v1/servers/{server}/pins";
    let one = format!("{path}/{{tool}}");
    vec![
        admin(("get", path), "list_pins", "Lists approved and held definitions").answers(
            200,
            "The definitions",
            list,
        ),
        admin(("post", path), "approve_pins", "Approves definitions")
            .reads(true, approval)
            .answers(200, "Approved", approved),
        admin(("delete", path), "forget_pins", "Forgets all approvals of a server").answers(
            200,
            "Forgotten",
            forgotten.clone(),
        ),
        admin(("delete", &one), "forget_pin", "Withdraws the approval of a tool").answers(
            200,
            "Forgotten",
            forgotten,
        ),
    ]
}

fn reports(describer: &mut Describer) -> Vec<Operation> {
    let usage = usage_report(describer);
    let (asked, params) = (describer.read::<UsageParams>(), describer.read::<AuditParams>());
    let entries = describer.list_of::<EntryView>("entries");
    let servers = describer.list_of::<ServerView>("servers");
    let toolsets = describer.list_of::<ToolsetView>("toolsets");
    let tools = object(&json!({"tools": {"type": "array", "items": {"type": "object"}}}));
    let mut calls = describer.list_of::<LiveCallView>("calls");
    calls["properties"]["count"] = json!({"type": "integer"});
    vec![
        admin(("get", "/admin/v1/usage"), "usage", "Reports the usage of all, or of one tenant")
            .query(&asked)
            .answers(200, "The usage", usage),
        admin(("get", "/admin/v1/audit"), "audit", "Lists changes, the latest first")
            .query(&params)
            .answers(200, "The changes", entries),
        admin(("get", "/admin/v1/servers"), "servers", "Shows all servers in full").answers(
            200,
            "The servers",
            servers,
        ),
        admin(("get", "/admin/v1/servers/{server}/tools"), "tools", "Lists a server's tools")
            .answers(200, "The tools, as the server defines them", tools.clone()),
        admin(("get", "/admin/v1/toolsets"), "toolsets", "Shows all toolsets").answers(
            200,
            "The toolsets",
            toolsets,
        ),
        admin(
            ("get", "/admin/v1/toolsets/{toolset}/tools"),
            "toolset_tools",
            "Lists a toolset's tools",
        )
        .answers(200, "The tools, under their names there", tools),
        admin(("get", "/admin/v1/calls"), "calls", "Lists the calls that run, the oldest first")
            .query(&describer.read::<CallsParams>())
            .answers(200, "The calls", calls),
        admin(("get", "/admin/v1/calls/{id}"), "call", "Shows a call of the last while").answers(
            200,
            "The call",
            json!({"type": "object"}),
        ),
        admin(("get", "/admin/v1/calls/{id}/explain"), "explain", "Explains a call").answers(
            200,
            "The limits, the queue, the attempts",
            json!({"type": "object"}),
        ),
    ]
}

/// Changes to what runs.
fn operate() -> Vec<Operation> {
    let done = || object(&json!({"id": text()}));
    let server = "/admin/v1/servers/{server}";
    let instance = format!("{server}/instances/{{instance}}/replace");
    let any = || json!({"type": "object"});
    let tool = "/admin/v1/tenants/{tenant}/servers/{server}/tools/{tool}";
    let (pause, resume) = (format!("{server}/pause"), format!("{server}/resume"));
    vec![
        admin(
            ("delete", "/admin/v1/calls/{id}"),
            "cancel_call",
            "Cancels a call that waits or runs",
        )
        .answers(200, "Cancelled", done()),
        admin(
            ("post", &pause),
            "pause_server",
            "Has a server's callers wait until their deadlines",
        )
        .answers(200, "Paused", done()),
        admin(("post", &resume), "resume_server", "Gives a server's callers slots again").answers(
            200,
            "Resumed",
            done(),
        ),
        admin(("post", &instance), "replace_instance", "Drains and replaces one instance").answers(
            200,
            "The next run starts",
            done(),
        ),
        admin(("post", tool), "call_tool", "Calls a tool as a tenant, within its limits")
            .reads(false, any())
            .answers(200, "The tool's result", any()),
    ]
}

/// The trunk now and a while ago.
fn live(describer: &mut Describer) -> Vec<Operation> {
    let any = || json!({"type": "object"});
    let calls = object(&json!({"calls": {"type": "array", "items": any()}}));
    let limits = object(&json!({"limits": {"type": "array", "items": any()}}));
    let (seconds, shares) =
        (describer.list_of::<SecondView>("seconds"), describer.list_of::<ShareView>("shares"));
    vec![
        admin(("get", "/admin/v1/live"), "live", "Shows who holds which slot, as events").answers(
            200,
            "Events `whole` and `change`, each with a JSON object",
            any(),
        ),
        admin(("get", "/admin/v1/history"), "history", "Lists the last 15 minutes by second")
            .answers(200, "The seconds", seconds),
        admin(("get", "/admin/v1/history/{second}"), "second", "Shows one second by tenants")
            .answers(200, "The busiest pairs of server and tenant", any()),
        admin(("get", "/admin/v1/shares"), "shares", "Lists the use of slots by tenants").answers(
            200,
            "The shares",
            shares,
        ),
        admin(
            ("get", "/admin/v1/calls/recent"),
            "recent_calls",
            "Lists failures of the last while",
        )
        .query(&describer.read::<RecentParams>())
        .answers(200, "The calls, the latest first", calls),
        admin(
            ("get", "/admin/v1/tenants/{tenant}/limits"),
            "tenant_limits",
            "Shows a tenant's use",
        )
        .answers(200, "The limits", limits),
    ]
}
