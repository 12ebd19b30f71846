//! `trunkline connect`

use anyhow::bail;

use super::output::print;
use super::tenant::must_exist;
use super::{ConfigArgs, Loaded, load_config, with_store};
use crate::common::ids::{ServerId, TenantName};
use crate::store::Missing;
use crate::tenants::connections::connect_url;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Tenant id
    #[arg(value_parser = TenantName::parse)]
    tenant: TenantName,
    /// Server id
    #[arg(value_parser = ServerId::parse)]
    server: ServerId,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let Args { tenant, server, config } = args;
    let Loaded { config, .. } = load_config(config)?;
    let Some(configured) = config.servers.get(&server) else {
        bail!("there is no server `{server}` in the configuration");
    };
    let Some(public_url) = config.public_url.as_deref().filter(|_| configured.needs_connection())
    else {
        bail!(
            "tenants do not connect themselves to server `{server}`: it has no `[servers.{server}.\
             oauth]` with `grant = \"authorization_code\"`"
        );
    };
    let found = with_store(&config, Missing::Create, async |store| {
        must_exist(&tenant, &config, store).await
    });
    found.await?;
    print(&format!("{}\n", connect_url(public_url, &tenant, &server)))
}
