//! `5spot`: see, preview and operate machines that are lent by the clock.

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use fivespot_api::scheduled_machine_crd;
use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "5spot", version, about = "Lend idle machines to Kubernetes by the clock")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the definition of ScheduledMachine, to install it in a cluster
    ///
    /// `5spot crd | kubectl apply --server-side -f -` installs or updates it.
    Crd {
        /// How to print it
        #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
        output: Format,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("5spot: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let text = match args.command {
        Command::Crd { output: Format::Yaml } => serde_saphyr::to_string(&scheduled_machine_crd())?,
        Command::Crd { output: Format::Json } => {
            serde_json::to_string_pretty(&scheduled_machine_crd())? + "\n"
        }
    };
    match stdout().write_all(text.as_bytes()) {
        // `5spot crd | head` has what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}
