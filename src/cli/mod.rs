//! The command line: one file per subcommand.

mod callback_secret;
mod check;
mod connect;
mod discover;
#[cfg(target_os = "linux")]
mod guard;
mod healthcheck;
mod key;
mod output;
mod pin;
mod policy_args;
mod running;
mod secret;
mod serial_check;
mod serve;
mod shell;
mod std;
mod tenant;

use ::std::path::PathBuf;
use ::std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use nix::unistd::{Uid, User};

use crate::common::allocator::give_memory_back_soon;
use crate::config::{Config, Sources};
use crate::store::{Actor, Missing, Store};
use crate::telemetry::logging;
use crate::telemetry::version::VERSION;

/// An MCP gateway: many tenants share a few long-lived MCP servers
#[derive(Parser)]
#[command(version = VERSION, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway
    Serve(serve::Args),
    /// Run the bundled MCP server on standard input and output
    Std(std::Args),
    /// Check the configuration: start every server and list its tools
    ///
    /// Exits with 1 if a server does not start.
    Check(check::Args),
    /// Find the files of MCP clients on this machine, and say what each would add
    ///
    /// Looks for those of Claude, Cursor, VS Code, Windsurf, Zed, Gemini CLI, Copilot CLI, Roo Code
    /// and opencode, in the home directory and in this one. Prints no arguments and no values.
    Discover(discover::Args),
    /// Call one tool through a running gateway
    ///
    /// The value of KEY=VALUE is JSON if it can be read as JSON, and else a text; `id='"7"'` is the
    /// text 7.
    ///
    /// The result goes to standard output, an error to standard error. Exit codes: 0, the tool
    /// succeeded; 1, the tool ran and reports that it failed; 2, no gateway could be called; 3, the
    /// gateway refused the call, or the call failed.
    Call(running::call::Args),
    /// Show a running gateway at a glance: its servers, and what failed last
    ///
    /// Without an administrator's key, shows what the caller may see.
    Status(running::status::Args),
    /// Show the trunk of a running gateway while it changes, for administrators
    ///
    /// A block is a slot that a call holds, coloured by its tenant; `+` are calls that wait, in the
    /// order in which they will be served. `q` ends.
    Top(running::top::Args),
    /// Show the servers of a running gateway, or the instances of one
    Servers(running::servers::Args),
    /// List the tools of a running gateway
    Tools(running::tools::Args),
    /// List calls: those that run now, or the kept calls of a tenant
    ///
    /// With an administrator's key, the calls that servers work on now; with a tenant's, the calls
    /// of the tenant that are kept.
    Calls(running::calls::Args),
    /// Explain how the gateway decided about a call, and what would have let it through
    ///
    /// Finds calls that failed, were refused or were slow, of the last while.
    Explain(running::explain::Args),
    /// Report how often each tool was called, and how long that took
    ///
    /// `ERRORS` are calls that failed, `FAILED` those that the tool itself reports as failed.
    /// `QUEUE` and `BACKEND` are the averages of one call.
    Usage(running::usage::Args),
    /// List changes and their authors, for administrators
    Audit(running::audit::Args),
    /// Print completions for a shell
    ///
    /// For bash: `trunkline completions bash >/etc/bash_completion.d/trunkline`.
    Completions(shell::CompletionsArgs),
    /// Write man pages, one for each command
    Man(shell::ManArgs),
    /// Exit with 0 when a gateway is ready; for containers
    ///
    /// Otherwise the exit code is 1, and standard error says why.
    Healthcheck(healthcheck::Args),
    /// Add, show, change and remove tenants
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Key(key::Command),
    /// Compare and approve tool definitions of servers with `pin = true`
    #[command(subcommand)]
    Pin(pin::Command),
    /// Set, list and remove tenants' secrets, such as tokens for their servers
    #[command(subcommand)]
    Secret(secret::Command),
    /// Print the page at which a person of a tenant connects it to a server (OAuth)
    ///
    /// The person opens the page in a browser, and signs in with a key of the tenant.
    Connect(connect::Args),
    /// Make and rotate the secrets that tenants' callbacks are signed with
    #[command(subcommand)]
    CallbackSecret(callback_secret::Command),
}

/// Names the files that the configuration is read from.
#[derive(clap::Args)]
struct ConfigArgs {
    /// Configuration file [default: trunkline.toml in this directory, if there is one]
    #[arg(long, value_name = "FILE", env = "TRUNKLINE_CONFIG")]
    config: Option<PathBuf>,
    /// Add the servers of an MCP client's `{"mcpServers": {…}}` file
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,
}

/// An option of the commands that may run before the first `trunkline serve`.
#[derive(clap::Args)]
struct CreateArgs {
    /// Make the store if it does not exist yet
    #[arg(long)]
    create: bool,
}

impl CreateArgs {
    fn missing(&self) -> Missing {
        if self.create { Missing::Create } else { Missing::Refuse }
    }
}

/// Returns the tree of all commands, for the reference in `docs/reference/cli.md`.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the command line and runs its command.
pub fn run() -> ExitCode {
    give_memory_back_soon();
    #[cfg(target_os = "linux")]
    if ::std::env::args_os().nth(1).is_some_and(|command| command == "guard") {
        let args: Vec<_> = ::std::env::args_os().skip(2).collect();
        return guard::run(&args);
    }
    let success = |()| ExitCode::SUCCESS;
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(args).map(success),
        Command::Std(args) => std::run(args).map(success),
        Command::Check(args) => check::run(args),
        Command::Discover(args) => discover::run(args).map(success),
        Command::Call(args) => running::call::run(args),
        Command::Status(args) => running::status::run(args).map(success),
        Command::Top(args) => running::top::run(args).map(success),
        Command::Servers(args) => running::servers::run(args).map(success),
        Command::Tools(args) => running::tools::run(args).map(success),
        Command::Calls(args) => running::calls::run(args).map(success),
        Command::Explain(args) => running::explain::run(args).map(success),
        Command::Usage(args) => running::usage::run(args).map(success),
        Command::Audit(args) => running::audit::run(args).map(success),
        Command::Completions(args) => shell::completions(args).map(success),
        Command::Man(args) => shell::man(args).map(success),
        Command::Healthcheck(args) => healthcheck::run(args),
        Command::Tenant(command) => tenant::run(command).map(success),
        Command::Key(command) => key::run(command).map(success),
        Command::Pin(command) => pin::run(command).map(success),
        Command::Secret(command) => secret::run(command).map(success),
        Command::Connect(args) => connect::run(args).map(success),
        Command::CallbackSecret(command) => callback_secret::run(command).map(success),
    };
    let code = outcome.unwrap_or_else(|error| {
        logging::print_line(format_args!("error: {error:#}"));
        ExitCode::from(2)
    });
    logging::flush();
    code
}

struct Loaded {
    config: Config,
    /// The files it is from, to be shown.
    origin: String,
    /// This executable.
    own_program: PathBuf,
}

/// Loads the configuration that `args` and the environment name.
fn load_config(args: ConfigArgs) -> anyhow::Result<Loaded> {
    load(&sources(args, None)?)
}

/// Returns the sources of the configuration that `args` and the environment name.
fn sources(args: ConfigArgs, listen: Option<String>) -> anyhow::Result<Sources> {
    Ok(Sources {
        file: args.config,
        mcp_file: args.mcp_config,
        listen,
        // A variable that is not UTF-8 is none of ours.
        env: ::std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        working_dir: ::std::env::current_dir()?,
        own_program: ::std::env::current_exe()?,
    })
}

fn load(sources: &Sources) -> anyhow::Result<Loaded> {
    let loaded = load_silently(sources)?;
    for warning in &loaded.config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

/// Loads a configuration whose warnings the command shows itself.
fn load_silently(sources: &Sources) -> anyhow::Result<Loaded> {
    let config = crate::config::load(sources)?;
    let origin = match &sources.mcp_file {
        Some(file) => format!("{} and {}", config.origin, file.display()),
        None => config.origin.clone(),
    };
    Ok(Loaded { config, origin, own_program: sources.own_program.clone() })
}

/// Runs `work` with the configured store, and says on standard error which store that is. Closes
/// the store in any case: SQLite would leave files behind.
async fn with_store<T, E: Into<anyhow::Error>>(
    config: &Config,
    missing: Missing,
    work: impl AsyncFnOnce(&Store) -> Result<T, E>,
) -> anyhow::Result<T> {
    let store = Store::configured(config, missing).await?;
    logging::print_line(format_args!("store: {}", store.place()));
    let outcome = work(&store).await;
    store.close().await;
    outcome.map_err(E::into)
}

/// Returns the user who runs this command, for the audit log. Not by `USER`, which anybody can set.
fn actor() -> Actor {
    let uid = Uid::current();
    let user = User::from_uid(uid).ok().flatten();
    Actor::cli(&user.map_or_else(|| uid.to_string(), |user| user.name))
}
