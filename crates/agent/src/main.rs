//! `5spot-reclaim-agent`: the owner of a lent machine starts a program, and the machine is his again.

use clap::Parser;
use fivespot_agent::options::Options;
use fivespot_agent::run::{Ending, run};
use std::process::ExitCode;

/// Ended because it had to: with `--oneshot`, whether a process matches is not known.
const FAILED: u8 = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    fivespot_ops::logs::init(options.log_format);
    match run(options).await {
        Ok(Ending::Asked | Ending::Looked(true)) => ExitCode::SUCCESS,
        Ok(Ending::Looked(false)) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(FAILED)
        }
    }
}
