//! A control plane in the foreground, for people and scripts.

use crate::{progress, root};
use anyhow::{Context, Result};
use fivespot_testenv::{ControlPlane, Options, Servers, Topology};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};
use tokio::signal::unix::{SignalKind, signal};

/// How often the servers are looked at while nothing else happens.
const WATCH: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A management and a workload cluster instead of one that is both
    #[arg(long)]
    two: bool,
    /// Port of the management cluster's API server [default: any free port]
    #[arg(long)]
    port: Option<u16>,
    /// Folder for everything, removed in the end [default: .cluster]
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Starts the control plane, lets `prepare` work on it, and stays until a signal or the end of a server.
pub(crate) fn run(args: &Args, prepare: fn(&ControlPlane) -> Result<()>) -> Result<()> {
    let servers = Servers::find_or_build(&mut progress::Terminal::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let stopped = async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        };
        tokio::select! {
            () = stopped => {
                println!("stopped; nothing is left behind");
                Ok(())
            }
            outcome = serve(args, &servers, prepare) => outcome,
        }
    });
    // A kubectl under way is not waited for; the supervisor ends the servers when this process is gone.
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &Args, servers: &Servers, prepare: fn(&ControlPlane) -> Result<()>) -> Result<()> {
    let folder = args.folder.clone().unwrap_or_else(|| root().join(".cluster"));
    let began = Instant::now();
    let topology = if args.two { Topology::Two } else { Topology::One };
    let options = Options { topology, folder: Some(folder.clone()), port: args.port, ..Options::default() };
    let plane = Arc::new(ControlPlane::start(options).await?);
    link_binaries(servers, &folder.join("bin"))?;
    // Applying manifests blocks; on a thread of its own it leaves this one to hear the signals.
    let prepared = Arc::clone(&plane);
    tokio::task::spawn_blocking(move || prepare(&prepared)).await??;
    println!(
        "started in {:.1} s; Ctrl-C ends it and removes {}",
        began.elapsed().as_secs_f32(),
        folder.display()
    );
    println!("ready");
    println!("export KUBECONFIG={}/kubeconfig PATH={0}/bin:$PATH", folder.display());
    if args.two {
        println!("the workload cluster: --kubeconfig {}", plane.workload().kubeconfig_path().display());
    }
    loop {
        tokio::time::sleep(WATCH).await;
        plane.check(plane.management())?;
        plane.check(plane.workload())?;
    }
}

fn link_binaries(servers: &Servers, bin: &Path) -> Result<()> {
    fs::create_dir_all(bin).with_context(|| format!("create {}", bin.display()))?;
    let folder = env::current_dir()?.join(servers.folder());
    for name in Servers::names() {
        symlink(folder.join(name), bin.join(name)).with_context(|| format!("link {name}"))?;
    }
    Ok(())
}
