//! `5spot`: see, preview and operate machines that are lent by the clock.

mod crd;
mod live;
mod output;
mod schedule;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "5spot",
    version,
    about = "Lend idle machines to Kubernetes by the clock",
    after_help = "Exit codes: 0 all is well, 1 lint found something to look at, 2 an error"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Crd(crd::Args),
    /// List machines: phase, window, next change, Node, reason
    Get(live::GetArgs),
    /// Say what the controller would do about a machine now, why, and what it waits for
    Explain(live::ExplainArgs),
    #[command(subcommand)]
    Schedule(schedule::Command),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Crd(args) => crd::run(&args),
        Command::Get(args) => live::get(&args),
        Command::Explain(args) => live::explain(&args),
        Command::Schedule(command) => schedule::run(&command),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("5spot: {error:#}");
        ExitCode::from(output::ERROR)
    })
}
