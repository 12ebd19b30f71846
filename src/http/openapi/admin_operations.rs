//! Every operation of administrators.

use serde_json::{Value, json};

use super::operation::{Describer, Operation, object, text};
use super::operations::{removed_secret, secret_value, usage_report};
use crate::common::policy::PolicyText;
use crate::http::admin::keys::NewKeyRequest;
use crate::http::admin::pins::Approval;
use crate::http::admin::reports::{AuditParams, EntryView, UsageParams};
use crate::http::admin::running::{CallsParams, LiveCallView};
use crate::http::rest::server_view::ServerView;
use crate::pins::PinView;
use crate::tenants::{KeyView, SecretView, TenantView};

pub(super) fn all(describer: &mut Describer) -> Vec<Operation> {
    let mut all = tenants(describer);
    all.extend(keys(describer));
    all.extend(secrets(describer));
    all.extend(pins(describer));
    all.extend(reports(describer));
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
    new["properties"]["id"] = text();
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
        admin(("patch", one), "change_tenant", "Changes members of a tenant; null removes one")
            .reads(true, with_nulls(change))
            .answers(200, "The tenant", tenant),
        admin(("delete", one), "remove_tenant", "Removes a tenant and revokes its keys")
            .answers(200, "Removed", removed),
    ]
}

/// Lets the members of an answer be sent back, and null remove any.
fn with_nulls(change: Value) -> Value {
    let mut change = json!({"anyOf": [change, {"type": "object"}]});
    change["description"] = json!("Members as of a new tenant (RFC 7396)");
    change
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
            .answers(200, "The tools, as the server defines them", tools),
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
