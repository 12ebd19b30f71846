//! `trunkline confine`: not for people; see [`crate::backend::confine::stage`].

use std::process::ExitCode;

use crate::backend::confine::stage;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The process id of the guard
    guard: u32,
    /// What to apply, as JSON
    profile: String,
    /// The server's program
    program: String,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub(super) fn run(args: Args) -> ExitCode {
    stage::run(args.guard, &args.profile, &args.program, &args.args)
}
