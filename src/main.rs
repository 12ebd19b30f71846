//! The `trunkline` program. Everything it does is in the library; see [`trunkline::cli`].

fn main() -> std::process::ExitCode {
    trunkline::cli::run()
}
