//! `5spot crd`.

use crate::output::print;
use anyhow::Result;
use clap::ValueEnum;
use fivespot_api::scheduled_machine_crd;
use std::process::ExitCode;

/// Print the definition of ScheduledMachine, to install it in a cluster
///
/// `5spot crd | kubectl apply --server-side -f -` installs or updates it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let crd = scheduled_machine_crd();
    print(&match args.output {
        Format::Yaml => serde_saphyr::to_string(&crd)?,
        Format::Json => serde_json::to_string_pretty(&crd)? + "\n",
    })
}
