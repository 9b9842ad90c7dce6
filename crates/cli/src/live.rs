//! Commands that look at a live cluster.

mod explain;
mod get;
mod table;

use anyhow::{Context, Result};
use clap::ValueEnum;
use fivespot_cluster::{Shell, connect};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Name under which the API server sees this program.
const PROGRAM: &str = "5spot-cli";

/// Which cluster, and where in it.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Namespace to look in [default: the one of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
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

pub(crate) fn get(args: &GetArgs) -> Result<ExitCode> {
    runtime()?.block_on(get::run(args))
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    runtime()?.block_on(explain::run(args))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")
}

impl Place {
    /// Looks at the cluster, and says which namespace is meant.
    async fn open(&self) -> Result<(Arc<Shell>, String)> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match &self.kubeconfig {
            Some(file) => {
                let what = || format!("--kubeconfig {}", file.display());
                let kubeconfig = Kubeconfig::read_from(file).with_context(what)?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(what)?
            }
            None => match Config::from_kubeconfig(&options).await {
                Ok(config) => config,
                Err(_) if self.context.is_none() && std::env::var_os("KUBECONFIG").is_none() => {
                    Config::infer().await.context("find a cluster: set KUBECONFIG or give --kubeconfig")?
                }
                Err(error) => return Err(error).context("read the kubeconfig"),
            },
        };
        config.proxy_url = None;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok((Shell::glance(connect(&config, PROGRAM)?, PROGRAM).await?, namespace))
    }
}
