//! Development tasks. `cargo xtask --help` lists them; the Makefile gives them short names.

mod bench;
mod cluster;
mod codegen;
mod demo;
mod mutants;
mod progress;
mod test;
mod wire;

use anyhow::Result;
use clap::{Parser, Subcommand};
use fivespot_testenv::{Error, RealNode, Servers};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Development tasks of 5-Spot")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build etcd, the Kubernetes servers and the parts of a real node, once for this machine
    ControlPlane,
    /// Run a real Kubernetes control plane in the foreground, until Ctrl-C
    Cluster(cluster::Args),
    /// Watch a machine leave by the clock, and at once for its owner, on a real control plane, until Ctrl-C
    Demo(cluster::Args),
    /// Write the files that are generated from code
    Codegen(codegen::Args),
    /// Make deliberate wrong changes, one at a time, and fail if a named test does not catch one
    Mutants(mutants::Args),
    /// Run all tests, three programs at a time
    Test(test::Args),
    /// Measure, and fail if a bar is missed
    Bench,
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::ControlPlane => {
            let mut progress = progress::Terminal::default();
            let servers = Servers::find_or_build(&mut progress)?;
            println!("the control plane is in {}", servers.folder().display());
            match RealNode::build(&mut progress) {
                // Its tests are skipped, and say so.
                Err(error @ Error::NodeUnavailable { .. }) => println!("{error}"),
                outcome => outcome?,
            }
            Ok(())
        }
        Task::Cluster(args) => cluster::run(&args, cluster::Load::Nothing),
        Task::Demo(args) => cluster::run(&args, cluster::Load::Demo),
        Task::Codegen(args) => codegen::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Bench => bench::run(),
    }
}

/// The root of the checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}
