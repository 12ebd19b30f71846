//! `trunkline pin`

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::output::{print, print_json, table};
use super::{ConfigArgs, Loaded, actor, load_config, with_store};
use crate::common::ids::ServerId;
use crate::config::Config;
use crate::pins::{Hash, Held, Pin, PinView, printable, views};
use crate::store::Missing;
use crate::telemetry::logging::print_line;

#[derive(Subcommand)]
pub(super) enum Command {
    /// List approved tools and tools that are held back
    List {
        /// Only this server
        #[arg(value_parser = ServerId::parse)]
        server: Option<ServerId>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Show how a tool that is held back differs from its approved definition
    Diff {
        #[command(flatten)]
        server: ServerArgs,
        /// Tool name
        tool: String,
    },
    /// Approve definitions that are held back
    Approve {
        #[command(flatten)]
        server: ServerArgs,
        /// Hashes of the definitions, as `pin diff` and `pin list` show them
        #[arg(value_name = "HASH", required_unless_present = "all", conflicts_with = "all")]
        hashes: Vec<String>,
        /// Approve every definition of this server that is held back now, unseen
        #[arg(long)]
        all: bool,
    },
    /// Withdraw the approval of a tool; without a tool, start again with the server's next list
    Forget {
        #[command(flatten)]
        server: ServerArgs,
        /// Tool name
        tool: Option<String>,
    },
}

#[derive(clap::Args)]
pub(super) struct ServerArgs {
    /// Server id
    #[arg(value_name = "SERVER", value_parser = ServerId::parse)]
    id: ServerId,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { server, json, config } => list(server, json, config).await,
        Command::Diff { server, tool } => diff(server, &tool).await,
        Command::Approve { server, hashes, all } => approve(server, &hashes, all).await,
        Command::Forget { server, tool } => forget(server, tool.as_deref()).await,
    }
}

async fn list(server: Option<ServerId>, json: bool, config: ConfigArgs) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(config)?;
    let (pins, held) = read(&config, server.as_ref()).await?;
    let views = views(&pins, &held);
    if let Some(server) = server.filter(|_| views.is_empty()) {
        check_pinned(&config, &server)?;
    }
    if json {
        return print_json(&json!({"pins": views}));
    }
    let rows = views.iter().map(|view| {
        [
            view.server.to_owned(),
            printable(view.tool),
            view.state.as_str().to_owned(),
            view.hash.clone(),
            view.since.map_or("-".to_owned(), |at| format!("{at:.0}")),
            view.by.map_or("-".to_owned(), printable),
        ]
    });
    print(&table(["SERVER", "TOOL", "STATE", "HASH", "SINCE", "BY"], rows))
}

/// Fails if a server without pins never has any: it is unknown, or not pinned.
fn check_pinned(config: &Config, server: &ServerId) -> anyhow::Result<()> {
    let Some(configured) = config.servers.get(server) else {
        let known: Vec<_> = config.servers.keys().map(|id| format!("`{id}`")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        bail!("there is no server `{server}`; the configuration has {known}");
    };
    if !configured.pin {
        bail!("server `{server}` is not pinned: `pin = true` under `[servers.{server}]` pins it");
    }
    Ok(())
}

async fn diff(server: ServerArgs, tool: &str) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(server.config)?;
    let (pins, held) = read(&config, Some(&server.id)).await?;
    let server = server.id;
    let views = of_tool(&pins, &held, tool);
    if views.is_empty() {
        bail!(
            "server `{server}` has no approved or held-back tool `{}`; `trunkline pin list \
             {server}` shows all",
            printable(tool)
        );
    }
    for view in views {
        let (name, hash) = (printable(view.tool), &view.hash);
        let Some(diff) = &view.diff else {
            print(&format!("{name}: {} {hash}\n", view.state.as_str()))?;
            continue;
        };
        let before = view.approved_hash.as_deref().unwrap_or("(nothing was approved)");
        print(&format!("--- {name} {before}\n+++ {name} {hash}\n{diff}"))?;
        print_line(format_args!("`trunkline pin approve {server} {hash}` approves it"));
    }
    Ok(())
}

async fn approve(server: ServerArgs, texts: &[String], all: bool) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(server.config)?;
    let server = server.id;
    let approved = with_store(&config, Missing::Refuse, async |store| {
        let (pins, held) = store.pins(Some(&server)).await?;
        let hashes: Vec<Hash> = if all {
            held.iter().map(|held| held.definition.hash).collect()
        } else {
            let parse = |text: &String| parse_hash(&server, &pins, &held, text);
            texts.iter().map(parse).collect::<anyhow::Result<_>>()?
        };
        if hashes.is_empty() {
            print_line(format_args!("nothing of server `{server}` is held back"));
            return Ok(vec![]);
        }
        anyhow::Ok(store.approve(&actor(), &server, &hashes).await?)
    });
    for tool in approved.await? {
        print_line(format_args!("approved tool `{}` of server `{server}`", printable(&tool)));
    }
    Ok(())
}

/// Explains why a name is not enough: the approved definition must be the one that was read.
fn parse_hash(server: &ServerId, pins: &[Pin], held: &[Held], text: &str) -> anyhow::Result<Hash> {
    if let Ok(hash) = text.parse() {
        return Ok(hash);
    }
    let held = of_tool(pins, held, text);
    match held.iter().find(|view| view.state.is_held()) {
        Some(PinView { hash, .. }) => bail!(
            "name the definition to approve by its hash: `trunkline pin diff {server} {tool}` \
             shows the present one, `trunkline pin approve {server} {hash}` approves it",
            tool = printable(text)
        ),
        None => bail!(
            "`{}` is neither a hash nor a tool of server `{server}` that is held back; \
             `trunkline pin list {server}` shows those",
            printable(text)
        ),
    }
}

async fn forget(server: ServerArgs, tool: Option<&str>) -> anyhow::Result<()> {
    let Loaded { config, .. } = load_config(server.config)?;
    let server = server.id;
    let forgotten = with_store(&config, Missing::Refuse, async |store| {
        store.forget_pins(&actor(), &server, tool).await
    });
    let forgotten = forgotten.await?;
    match tool {
        Some(tool) => print_line(format_args!(
            "tool `{}` of server `{server}` is no longer approved",
            printable(tool)
        )),
        None => print_line(format_args!(
            "forgot all pins of server `{server}` ({forgotten}); its next list of tools is approved"
        )),
    }
    Ok(())
}

async fn read(config: &Config, server: Option<&ServerId>) -> anyhow::Result<(Vec<Pin>, Vec<Held>)> {
    with_store(config, Missing::Refuse, async |store| store.pins(server).await).await
}

fn of_tool<'a>(pins: &'a [Pin], held: &'a [Held], tool: &str) -> Vec<PinView<'a>> {
    let mut views = views(pins, held);
    views.retain(|view| view.tool == tool);
    views
}
