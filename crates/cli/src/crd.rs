//! `5spot crd`.

use crate::output::{json, print};
use anyhow::Result;
use clap::ValueEnum;
use fivespot_api::fleet::fleet_crds;
use fivespot_api::scheduled_machine_crd;
use std::process::ExitCode;

/// Print the definition of ScheduledMachine, or of all kinds, to install it in a cluster
///
/// `5spot crd | kubectl apply --server-side -f -` installs or updates it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the kinds of the fleet operator too
    #[arg(long)]
    all: bool,
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
    let mut crds = vec![scheduled_machine_crd()];
    if args.all {
        crds.extend(fleet_crds());
    }
    print(&match args.output {
        Format::Yaml => {
            let texts: Result<Vec<String>, _> = crds.iter().map(serde_saphyr::to_string).collect();
            texts?.join("---\n")
        }
        Format::Json => match crds.as_slice() {
            [crd] => json(crd)?,
            crds => json(&serde_json::json!({"apiVersion": "v1", "kind": "List", "items": crds}))?,
        },
    })
}
