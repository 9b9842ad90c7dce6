//! Holds a control plane until it is killed or its input ends: what the tests kill to see that nothing is left.
//! With a name as its second argument it holds a real node of that name too.

use fivespot_testenv::{ControlPlane, Error, Options, Progress, RealNode, Servers};
use std::io::{Read, stdin};
use std::process::ExitCode;

struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: &str, _: usize, _: Option<usize>) {}
    fn done(&mut self, _: &str) {}
}

#[tokio::main]
async fn main() -> ExitCode {
    match hold().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn hold() -> Result<(), Error> {
    Servers::find_or_build(&mut Silent)?;
    let folder = std::env::args_os().nth(1).map(Into::into);
    let plane = ControlPlane::start(Options { folder, ..Options::default() }).await?;
    let _node = match std::env::args().nth(2) {
        Some(name) => {
            RealNode::build(&mut Silent)?;
            Some(RealNode::start(plane.management(), &name).await?)
        }
        None => None,
    };
    println!("ready");
    let _ = stdin().read(&mut [0]);
    Ok(())
}
