//! `5spot-controller`: machines join when their window opens and leave safely when it closes.

mod metrics;
mod options;
mod queue;
mod run;
mod share;
mod work;

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = options::Options::parse();
    fivespot_ops::logs::init(options.log_format);
    run::run(options).await
}
