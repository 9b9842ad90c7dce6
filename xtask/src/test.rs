//! All tests: cargo builds them, and three of their programs run at a time.
//!
//! Most tests wait most of the time, for a window to open or a lease to run out, and cargo would run one program after the
//! other. Some need the machine for themselves: they measure, or change what all processes of the host share.

use crate::root;
use anyhow::{Context, Result, bail};
use fivespot_testenv::cargo;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Programs that need the machine for themselves, and why.
const ALONE: [(&str, &str); 5] = [
    ("kernel", "silences the kernel's events for all processes"),
    ("load", "measures the API server"),
    ("node", "runs a kubelet with containers, and measures how fast they end"),
    ("instances", "measures how long machines have no owner, with hundreds of them"),
    ("life", "drives sixty machines at the same time, each with a minute for every step"),
];

/// Those of the others that take longest. They begin first, so that none is left over at the end.
const LONG: [&str; 10] = [
    "controller/campaign",
    "fleet/session",
    "fleet/campaign",
    "controller/alone",
    "fleet/fleet",
    "testenv/provider",
    "testenv/capi",
    "controller/life_v1beta1",
    "controller/clusters",
    "xtask/readme",
];

/// Programs that run at the same time.
const LANES: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only programs whose name contains this
    #[arg(value_name = "NAME")]
    only: Option<String>,
}

/// A program of tests.
#[derive(Debug, Clone)]
struct Program {
    /// Package and target.
    name: String,
    file: PathBuf,
    folder: PathBuf,
}

/// How a program ended.
struct Outcome {
    program: Program,
    passed: bool,
    output: String,
    took: Duration,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let began = Instant::now();
    let wanted = |it: &Program| args.only.as_ref().is_none_or(|only| it.name.contains(only.as_str()));
    let mut programs: Vec<Program> = build()?.into_iter().filter(wanted).collect();
    if programs.is_empty() {
        bail!("there is no such program of tests");
    }
    programs.sort_by_key(|it| LONG.iter().position(|name| it.name == *name).unwrap_or(LONG.len()));
    let is_alone = |it: &Program| {
        ALONE
            .iter()
            .any(|(name, _)| it.name == format!("controller/{name}") || it.name == format!("agent/{name}"))
    };
    let (alone, together): (Vec<_>, Vec<_>) = programs.into_iter().partition(is_alone);
    let mut outcomes = run_all(alone, 1);
    outcomes.extend(run_all(together, LANES));
    if args.only.is_none() {
        let doc = cargo(&root()).args(["test", "--locked", "--quiet", "--workspace", "--doc"]).status()?;
        if !doc.success() {
            bail!("a test in a comment failed");
        }
    }
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.passed).collect();
    for outcome in &failed {
        println!("== failed: {}\n{}", outcome.program.name, outcome.output);
    }
    if !failed.is_empty() {
        let names: Vec<&str> = failed.iter().map(|outcome| outcome.program.name.as_str()).collect();
        bail!("{} of {} programs failed: {}", failed.len(), outcomes.len(), names.join(", "));
    }
    println!("== {} programs passed in {:.0} s", outcomes.len(), began.elapsed().as_secs_f32());
    Ok(())
}

/// Builds all tests and says where they are.
fn build() -> Result<Vec<Program>> {
    let mut command = cargo(&root());
    command.args(["test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("run cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let mut programs = Vec::new();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Value = serde_json::from_slice(line).context("read what cargo built")?;
        let is_test = message["profile"]["test"] == true;
        let (Some(file), Some(manifest), true) =
            (message["executable"].as_str(), message["manifest_path"].as_str(), is_test)
        else {
            continue;
        };
        let folder = Path::new(manifest).parent().unwrap_or(Path::new(".")).to_owned();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let target =
            if kind == "test" { message["target"]["name"].as_str().unwrap_or_default() } else { kind };
        programs.push(Program { name: format!("{package}/{target}"), file: file.into(), folder });
    }
    Ok(programs)
}

/// Runs programs, so many at a time, and shows what each said when it has ended.
fn run_all(programs: Vec<Program>, lanes: usize) -> Vec<Outcome> {
    let (queue, done) = (Mutex::new(programs.into_iter()), Mutex::new(Vec::new()));
    let next = || queue.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let outcome = run_one(program);
                    show(&outcome);
                    if let Ok(mut done) = done.lock() {
                        done.push(outcome);
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_default()
}

fn run_one(program: Program) -> Outcome {
    let began = Instant::now();
    println!("== runs {}", program.name);
    let mut command = Command::new(&program.file);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    let (passed, output) = match command.output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) => (false, error.to_string()),
    };
    Outcome { program, passed, output, took: began.elapsed() }
}

/// In one piece, whatever the other lanes print. What failed is shown at the end.
fn show(outcome: &Outcome) {
    let Outcome { program, passed, output, took } = outcome;
    let word = if *passed { "passed" } else { "FAILED" };
    println!("{}\n== {word} {}, {:.0} s", output.trim(), program.name, took.as_secs_f32());
}
