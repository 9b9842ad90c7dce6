//! `5spot`: see, preview and operate machines that are lent by the clock.

mod crd;
mod fleet;
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
    after_help = "Exit codes: 0 all is well, 1 there is something to look at or nothing to do, 2 an error"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Crd(crd::Args),
    /// List machines: phase, window, next change, Node, reason
    ///
    /// Exit codes: 0 none of them needs a person, 1 one does (phase Error, or condition Stalled), 2 an error.
    Get(live::GetArgs),
    /// Say what the controller would do about a machine now, why, and what it waits for
    ///
    /// Exit codes: 0 it needs no person, 1 it does (phase Error, or an exit that hangs), 2 an error.
    Explain(live::ExplainArgs),
    /// Take a machine back for its owner, at once and by hand
    ///
    /// The machine is emptied without grace and leaves the cluster, its schedule is disabled, and it stays with its owner
    /// until `5spot resume`. This is what happens when a program of spec.killIfCommands starts; by hand it needs neither
    /// that list nor the agent.
    ///
    /// Exit codes: 0 it was asked for, or is on its way already; with --wait, it is with its owner. 1 nothing was asked,
    /// since it is with its owner already, is being deleted, or its kill switch is set. 2 an error, or it takes longer
    /// than --timeout.
    Reclaim(live::ReclaimArgs),
    /// Lend a machine again that its owner took back
    ///
    /// Says why it was taken back, releases the hold and enables the schedule. If a program of spec.killIfCommands still
    /// runs on it, it is taken back again as soon as it has joined.
    ///
    /// Exit codes: 0 it is lent again by its schedule, 1 there is nothing to resume, or not yet, 2 an error.
    Resume(live::ResumeArgs),
    #[command(subcommand)]
    Schedule(schedule::Command),
    #[command(subcommand)]
    Fleet(fleet::Command),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Crd(args) => crd::run(&args),
        Command::Get(args) => live::get(&args),
        Command::Explain(args) => live::explain(&args),
        Command::Reclaim(args) => live::reclaim(&args),
        Command::Resume(args) => live::resume(&args),
        Command::Schedule(command) => schedule::run(&command),
        Command::Fleet(command) => fleet::run(&command),
    };
    outcome.unwrap_or_else(|error| {
        output::say(&format!("5spot: {error:#}"));
        ExitCode::from(output::ERROR)
    })
}
