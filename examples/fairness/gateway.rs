//! The process that is measured: one gateway with a front end for each tenant, which is how tenants are told apart.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::backend::Environment;
use trunkline::config::{self, Sources};
use trunkline::gateway::Gateway;
use trunkline::http::{self, Front};
use trunkline::ids::TenantId;
use trunkline::registry::Registry;
use trunkline::telemetry::metrics::Metrics;

/// `gateway FILE TENANT…`: prints where each tenant is served, and serves until its input ends.
#[tokio::main]
pub async fn run() -> Result<()> {
    let mut args = std::env::args().skip(2);
    let own_program = std::env::current_exe()?;
    let mut config = config::load(&Sources {
        file: args.next().map(PathBuf::from),
        mcp_file: None,
        listen: None,
        env: vec![],
        working_dir: std::env::current_dir()?,
        own_program: own_program.clone(),
    })?;
    let metrics = Metrics::new();
    let environment = Environment::new(own_program, config.max_response, metrics.clone());
    let (servers, stop) = (TaskTracker::new(), CancellationToken::new());
    let registry = Registry::start(&config.servers, &environment, &servers, &stop);
    let gateway = Arc::new(Gateway::new(registry, metrics));
    for tenant in args {
        config.auth.anonymous_tenant = Some(TenantId::parse(&tenant)?);
        let routes = http::router(Arc::new(Front::new(gateway.clone(), &config)), false);
        let listener = TcpListener::bind(config.listen).await?;
        println!("{}", listener.local_addr()?);
        let (timeout, token) = (config.header_timeout, stop.clone());
        servers.spawn(http::server::serve(listener, routes, timeout, token.clone(), token));
    }
    tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await?;
    stop.cancel();
    servers.close();
    servers.wait().await;
    Ok(())
}
