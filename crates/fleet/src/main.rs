//! `5spot-fleet-operator`: a cluster's side of BigFleet, which gives machines back without breaking a budget.

use clap::Parser;
use fivespot_fleet::options::Options;
use fivespot_fleet::run::run;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    fivespot_ops::logs::init(options.log_format);
    match Box::pin(run(options)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
