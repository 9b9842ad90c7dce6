//! Commands that look at a live cluster, and the two that write to it: `reclaim` and `resume`.

mod explain;
mod follow;
mod get;
mod reclaim;
mod resume;
pub(crate) mod table;

pub(crate) use reclaim::ReclaimArgs;
pub(crate) use resume::ResumeArgs;

use crate::output::{Lines, json, print, yaml};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use fivespot_api::names::CLI;
use fivespot_cluster::{Shell, Watched, config, connect};
use kube::Config;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Which cluster, and where in it.
#[derive(clap::Args)]
struct Place {
    /// Namespace to look in [default: the one of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// Which cluster.
#[derive(clap::Args)]
pub(crate) struct Access {
    /// Kubeconfig to use [default: what kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use [default: its current one]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct GetArgs {
    /// Names of ScheduledMachines [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    place: Place,
    /// Look in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Stay, and print a line whenever a machine changes
    #[arg(short, long)]
    watch: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArgs {
    /// Name of a ScheduledMachine
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    place: Place,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = ExplainFormat::Text)]
    output: ExplainFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    Text,
    /// A table with more columns
    Wide,
    /// The objects, for scripts
    Json,
    /// The objects, for people and scripts
    Yaml,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExplainFormat {
    /// For people
    Text,
    /// For scripts
    Json,
}

/// How the commands that write say what they did.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people
    Text,
    /// For scripts
    Json,
    /// For people and scripts
    Yaml,
}

/// What a command did, for either reader.
pub(crate) struct Report {
    pub(crate) text: Lines,
    pub(crate) value: serde_json::Value,
}

impl Report {
    pub(crate) fn print(&self, format: ReportFormat) -> Result<ExitCode> {
        match format {
            ReportFormat::Text => self.text.print(),
            ReportFormat::Json => print(&json(&self.value)?),
            ReportFormat::Yaml => print(&yaml(&self.value)?),
        }
    }
}

pub(crate) fn get(args: &GetArgs) -> Result<ExitCode> {
    runtime()?.block_on(get::run(args))
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    runtime()?.block_on(explain::run(args))
}

pub(crate) fn reclaim(args: &ReclaimArgs) -> Result<ExitCode> {
    runtime()?.block_on(reclaim::run(args))
}

pub(crate) fn resume(args: &ResumeArgs) -> Result<ExitCode> {
    runtime()?.block_on(resume::run(args))
}

/// A ScheduledMachine that must be there.
async fn find(shell: &Shell, namespace: &str, name: &str) -> Result<Watched> {
    match shell.read_machine(namespace, name).await? {
        Some(watched) => Ok(watched),
        None => bail!("there is no ScheduledMachine {name} in namespace {namespace}"),
    }
}

/// The words of a request, or that it has none.
fn why(reason: &str) -> &str {
    if reason.is_empty() { "no reason was given" } else { reason }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")
}

impl Place {
    /// Looks at the cluster, and says which namespace is meant.
    async fn open(&self) -> Result<(Arc<Shell>, String)> {
        let config = self.access.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok((Shell::glance(connect(&config, &CLI.into())?, CLI).await?, namespace))
    }
}

impl Access {
    /// How the cluster is reached.
    pub(crate) async fn config(&self) -> Result<Config> {
        Ok(config(self.kubeconfig.as_deref(), self.context.as_deref()).await?)
    }
}
