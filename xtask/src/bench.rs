//! `make bench`: runs `fivespot-bench` and prints one table.

use crate::root;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Rounds of work for callgrind, few and many: the difference is free of what starting costs.
const FEW: u64 = 1_000;
const MANY: u64 = 11_000;

/// Bars of the schedule engine: calls of `at` per second and core, nanoseconds to a transition, bytes.
const AT_PER_SECOND: u64 = 5_000_000;
const TRANSITION_NANOSECONDS: u64 = 5_000;
const SCHEDULE_BYTES: u64 = 128;
/// What 5 million calls a second leave to a core that does one instruction in a fifth of a nanosecond. Counted, it
/// holds on a machine that is busy with other things.
const AT_INSTRUCTIONS: u64 = 1_000;

pub(crate) fn run() -> Result<()> {
    let program = root().join("target/release/fivespot-bench");
    let output = |args: &[&str]| -> Result<String> {
        let output = Command::new(&program).args(args).output().context("run fivespot-bench")?;
        if !output.status.success() {
            bail!("fivespot-bench {} failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    let times = output(&["time"])?;
    let times: BTreeMap<&str, u64> = times
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, nanoseconds)| Ok((name, nanoseconds.parse()?)))
        .collect::<Result<_>>()?;
    println!("{:<34} {:>10} {:>14} {:>14}", "case", "ns", "per second", "instructions");
    let mut missed = Vec::new();
    for name in output(&["names"])?.lines() {
        let nanoseconds = times.get(name).copied().with_context(|| format!("{name} was not timed"))?.max(1);
        let per_second = 1_000_000_000 / nanoseconds;
        let counted = instructions(&program, name)?;
        let instructions = counted.map_or("no valgrind".to_owned(), |n| n.to_string());
        if name.starts_with("at-days-hours") && counted.is_some_and(|n| n > AT_INSTRUCTIONS) {
            missed.push(format!("{name}: {instructions} instructions, not {AT_INSTRUCTIONS}"));
        }
        println!("{name:<34} {nanoseconds:>10} {per_second:>14} {instructions:>14}");
        if name.starts_with("at-days-hours") && per_second < AT_PER_SECOND {
            missed.push(format!("{name}: {per_second} per second, not {AT_PER_SECOND}"));
        }
        if name.starts_with("second-transition") && nanoseconds > TRANSITION_NANOSECONDS {
            missed.push(format!("{name}: {nanoseconds} ns, not {TRANSITION_NANOSECONDS}"));
        }
    }
    let bytes: u64 = output(&["size"])?.trim().parse()?;
    println!("a compiled schedule takes {bytes} bytes beside its zone");
    if bytes > SCHEDULE_BYTES {
        missed.push(format!("{bytes} bytes, not {SCHEDULE_BYTES}"));
    }
    if missed.is_empty() {
        return Ok(());
    }
    bail!("bars that were missed: {}", missed.join("; "))
}

/// Instructions for one piece of work, if valgrind is there to count them.
fn instructions(program: &Path, name: &str) -> Result<Option<u64>> {
    let (Some(few), Some(many)) = (count(program, name, FEW)?, count(program, name, MANY)?) else {
        return Ok(None);
    };
    Ok(Some((many - few) / (MANY - FEW)))
}

fn count(program: &Path, name: &str, rounds: u64) -> Result<Option<u64>> {
    let file = root().join("target/callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(["work", name, &rounds.to_string()])
        .output();
    let Ok(output) = output else { return Ok(None) };
    if !output.status.success() {
        bail!("valgrind failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = fs::read_to_string(&file).context("read what callgrind wrote")?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    Ok(total.map(str::trim).and_then(|total| total.parse().ok()))
}
