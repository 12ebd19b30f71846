//! `/admin/v1`: tenants, keys, secrets, usage, pins, the audit log and servers, for administrators.
//!
//! Changes are written to the store. All gateways that use the store follow within two seconds.

mod keys;
mod pins;
mod reports;
mod request;
mod secrets;
mod tenants;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, put};

pub(super) use self::reports::{ADMIN_REPORTS_MAX, TENANT_REPORTS_MAX, own_usage};
pub(super) use self::request::ok;
use super::state::AppState;

pub(super) fn routes() -> Router<Arc<AppState>> {
    let secret = put(secrets::set).delete(secrets::remove);
    let tenant = get(tenants::show).patch(tenants::change).delete(tenants::remove);
    let pins = get(pins::list).post(pins::approve).delete(pins::forget_all);
    Router::new()
        .route("/admin/v1/tenants", get(tenants::list).post(tenants::add))
        .route("/admin/v1/tenants/{tenant}", tenant)
        .route("/admin/v1/tenants/{tenant}/keys", get(keys::list).post(keys::create))
        .route("/admin/v1/tenants/{tenant}/servers/{server}/secrets", get(secrets::list))
        .route("/admin/v1/tenants/{tenant}/servers/{server}/secrets/{name}", secret)
        .route("/admin/v1/admin-keys", get(keys::list_admin).post(keys::create_admin))
        .route("/admin/v1/keys/{key}", delete(keys::revoke))
        .route("/admin/v1/usage", get(reports::usage))
        .route("/admin/v1/audit", get(reports::audit))
        .route("/admin/v1/servers", get(reports::servers))
        .route("/admin/v1/servers/{server}/pins", pins)
        .route("/admin/v1/servers/{server}/pins/{tool}", delete(pins::forget_one))
}
