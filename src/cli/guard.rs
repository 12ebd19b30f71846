//! `trunkline guard`: not for people; see [`crate::backend::guard`].

use std::process::ExitCode;

use crate::backend::guard;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The process id of the gateway
    gateway: u32,
    /// How the server is confined, as JSON
    profile: String,
    /// The server's program
    program: String,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub(super) fn run(args: Args) -> ExitCode {
    guard::run(args.gateway, &args.profile, &args.program, &args.args)
}
