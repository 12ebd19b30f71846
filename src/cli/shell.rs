//! `trunkline completions` and `trunkline man`: files for shells and for `man`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap_complete::Shell;

use super::output::print;

#[derive(clap::Args)]
pub(super) struct CompletionsArgs {
    /// Shell that reads the completions
    shell: Shell,
}

#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// Directory for the pages; made if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn completions(args: CompletionsArgs) -> anyhow::Result<()> {
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut super::command(), "trunkline", &mut script);
    print(&String::from_utf8(script)?)
}

pub(super) fn man(args: ManArgs) -> anyhow::Result<()> {
    let directory = args.directory;
    let cannot_write = || format!("cannot write man pages to {}", directory.display());
    fs::create_dir_all(&directory).with_context(cannot_write)?;
    clap_mangen::generate_to(super::command(), &directory).with_context(cannot_write)
}
