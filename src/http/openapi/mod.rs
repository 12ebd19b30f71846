//! Describes the HTTP API in OpenAPI 3.1: `GET /openapi.json`, and a page that shows it: `GET
//! /docs`.
//!
//! - `operations`, `mcp_operations`: every operation of callers
//! - `admin_operations`: those of administrators
//! - `operation`: how one is described; schemas are made from the types that are sent
//! - `tools`: an operation for each tool that the caller may use

mod admin_operations;
mod mcp_operations;
mod operation;
mod operations;
mod tools;

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::operation::Describer;
use super::auth::origin::CallersPage;
use super::auth::{Administrator, Authenticated, credential};
use super::error::{HttpError, HttpResult};
use super::headers::add_rate_status;
use super::rest::servers::admit;
use super::state::AppState;
use super::unsent::hold;
use crate::gateway::{check_room, hold_response};

/// The page runs its own script alone, and speaks with this gateway alone.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'";

/// The part that is the same for all callers.
static COMMON: LazyLock<Value> = LazyLock::new(common);
static COMMON_TEXT: LazyLock<Bytes> = LazyLock::new(|| render(&COMMON));

/// Describes the API; for a caller also the tools that it may use. Without a tenant, as an
/// administrator or without a key, only the part that is the same for all.
pub(super) async fn document(State(app): State<Arc<AppState>>, mut head: Parts) -> HttpResult {
    let caller = match Authenticated::from_request_parts(&mut head, &app).await {
        Ok(Authenticated(caller)) => caller,
        Err(HttpError::Unauthenticated { .. })
            if credential(&head.headers).is_ok_and(|key| key.is_none()) =>
        {
            return Ok(respond(COMMON_TEXT.clone()));
        }
        Err(error @ HttpError::Forbidden(_)) => {
            let administrator = Administrator::from_request_parts(&mut head, &app).await;
            return administrator.map(|_| respond(COMMON_TEXT.clone())).map_err(|_| error);
        }
        Err(error) => return Err(error),
    };
    let tenant = &caller.tenant;
    check_room(tenant)?;
    let rate_status = admit(&caller).await?;
    let tools = tools::known(&app, &caller);
    let toolsets = tools::of_toolsets(&app, &caller);
    let all = tools.iter().chain(toolsets.iter().flat_map(|(_, tools)| tools));
    let len = all.map(|(_, tools)| tools.bytes()).sum();
    let make = || {
        let mut document = COMMON.clone();
        tools::add(&mut document, &caller, &tools, &toolsets);
        render(&document)
    };
    let body = app.gateway.offload().in_place(&tenant.long_work, len, make).await;
    let held = hold_response(tenant, body.len())?;
    let mut response = respond(body);
    add_rate_status(response.headers_mut(), &rate_status);
    hold(&mut response, Some(held));
    Ok(response)
}

fn render(document: &Value) -> Bytes {
    serde_json::to_vec(document).expect("a document is plain data").into()
}

fn respond(body: Bytes) -> Response<Body> {
    let content_type = (header::CONTENT_TYPE, "application/json");
    // It depends on the caller's rights.
    ([content_type, (header::CACHE_CONTROL, "no-store")], body).into_response()
}

fn common() -> Value {
    let mut describer = Describer::new();
    let mut paths = Map::new();
    for operation in
        operations::all(&mut describer).into_iter().chain(admin_operations::all(&mut describer))
    {
        let (path, method, described) = operation.into_parts();
        let path = paths.entry(path).or_insert_with(|| json!({}));
        path[method] = described;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Trunkline",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "An MCP gateway: many tenants' tool calls share a few MCP servers.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}, {}],
        "tags": [
            {"name": "tools", "description": "The tools that you may use"},
            {"name": "calls"}, {"name": "servers"}, {"name": "tenant"}, {"name": "MCP"},
            {"name": "operations"}, {"name": "admin"},
        ],
        "paths": paths,
        "components": {
            "schemas": describer.into_schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    })
}

pub(super) async fn page(_: CallersPage) -> impl IntoResponse {
    asset("text/html; charset=utf-8", include_str!("page/docs.html"))
}

pub(super) async fn script(_: CallersPage) -> impl IntoResponse {
    asset("text/javascript; charset=utf-8", include_str!("page/docs.js"))
}

pub(super) async fn style(_: CallersPage) -> impl IntoResponse {
    asset("text/css; charset=utf-8", include_str!("page/docs.css"))
}

fn asset(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the methods and paths that a source file routes.
    fn routes_in(source: &str) -> BTreeSet<(String, String)> {
        let code = source.split("fn replicas_router").next().unwrap_or_default().to_owned()
            + source.split("fn ops_routes").nth(1).unwrap_or_default();
        let variables: Vec<(String, String)> = code
            .split("let ")
            .filter_map(|text| text.split_once(" = "))
            .filter_map(|(name, value)| {
                Some((name.to_owned(), value.split(';').next()?.to_owned()))
            })
            .collect();
        let mut routes = BTreeSet::new();
        for route in code.split(".route(").skip(1) {
            let Some(path) = route.split('"').nth(1) else { continue };
            let handlers = route.split('"').nth(2).unwrap_or_default();
            let handlers = handlers.split(".route(").next().unwrap_or_default();
            let name = handlers.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
            let name = name.split(')').next().unwrap_or_default();
            let variable = variables.iter().find(|(variable, _)| variable == name);
            let handlers = variable.map_or(handlers, |(_, value)| value);
            for method in ["get", "post", "put", "patch", "delete"] {
                let is_there = handlers.match_indices(&format!("{method}(")).any(|(at, _)| {
                    !handlers[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
                });
                if is_there {
                    routes.insert((method.to_owned(), path.to_owned()));
                }
            }
        }
        routes
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let mut routes = routes_in(include_str!("../mod.rs"));
        routes.extend(routes_in(include_str!("../admin/mod.rs")));
        // Their handlers are parameters.
        for path in ["/readyz", "/metrics"] {
            routes.insert(("get".to_owned(), path.to_owned()));
        }
        assert!(routes.len() > 40, "{routes:?}");
        let document = common();
        let described =
            document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| (method.clone(), path.clone()))
            });
        let described: BTreeSet<_> = described.collect();
        let missing: Vec<_> = routes.difference(&described).collect();
        let unknown: Vec<_> = described.difference(&routes).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "{missing:?} {unknown:?}");
    }

    #[test]
    fn every_reference_resolves_and_every_operation_has_a_name_of_its_own() {
        let document = common();
        let mut references = vec![];
        collect(&document, &mut references);
        for reference in &references {
            let pointer = reference.strip_prefix('#').expect("no other document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        assert!(references.len() > 20);
        let names = document["paths"].as_object().unwrap().values().flat_map(|path| {
            path.as_object().unwrap().values().map(|operation| operation["operationId"].as_str())
        });
        let names: Vec<_> = names.collect();
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    fn collect(value: &Value, references: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|value| collect(value, references));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
            _ => {}
        }
    }
}
