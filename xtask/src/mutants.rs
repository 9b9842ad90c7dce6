//! Deliberate wrong changes, each of which a named test must catch.
//!
//! A patch in `mutants/` begins with lines of prose: what it breaks, and `Caught-by:` with the arguments of the
//! `cargo test` that must fail with it. It must fail by that very test: a mutant that does not compile proves nothing.

use crate::root;
use anyhow::{Context, Result, bail};
use fivespot_testenv::cargo;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only those whose file name contains this
    #[arg(value_name = "NAME")]
    only: Option<String>,
}

/// One wrong change.
struct Mutant {
    name: String,
    file: PathBuf,
    /// Arguments of cargo, and the name of the test at their end.
    test: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let wanted = |mutant: &Mutant| args.only.as_ref().is_none_or(|only| mutant.name.contains(only.as_str()));
    let mutants: Vec<Mutant> = read_all()?.into_iter().filter(wanted).collect();
    if mutants.is_empty() {
        bail!("there is no such mutant in mutants/");
    }
    let place = root().join("target/mutants");
    let tree = place.join("tree");
    check_out(&tree)?;
    let mut survivors = Vec::new();
    for (n, mutant) in mutants.iter().enumerate() {
        let began = Instant::now();
        println!("[{} of {}] {}", n + 1, mutants.len(), mutant.name);
        let caught = try_one(&tree, &place, mutant)?;
        let word = if caught { "caught" } else { "SURVIVED" };
        println!("    {word} by {}, {:.0} s", mutant.test.join(" "), began.elapsed().as_secs_f32());
        if !caught {
            survivors.push(mutant.name.clone());
        }
    }
    git(&root(), &["worktree", "remove", "--force", &tree.to_string_lossy()])?;
    if survivors.is_empty() {
        println!("all {} mutants were caught", mutants.len());
        return Ok(());
    }
    bail!("not caught: {}", survivors.join(", "))
}

fn read_all() -> Result<Vec<Mutant>> {
    let folder = root().join("mutants");
    let mut mutants = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let file = entry?.path();
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let patch = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let line = patch.lines().find_map(|line| line.strip_prefix("Caught-by: "));
        let line = line.with_context(|| format!("{name} does not say what catches it"))?;
        let test = line.split_whitespace().map(str::to_owned).collect();
        mutants.push(Mutant { name, file, test });
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

/// A copy of what is committed, with a build folder of its own.
fn check_out(tree: &Path) -> Result<()> {
    git(&root(), &["worktree", "prune"])?;
    if tree.exists() {
        git(&root(), &["worktree", "remove", "--force", &tree.to_string_lossy()])?;
    }
    git(&root(), &["worktree", "add", "--detach", "--quiet", &tree.to_string_lossy(), "HEAD"])
}

/// Whether the named test fails with the change, having passed without it.
fn try_one(tree: &Path, place: &Path, mutant: &Mutant) -> Result<bool> {
    let Mutant { name, file, test } = mutant;
    let healthy = cargo_test(tree, place, test)?;
    if !healthy.contains("test result: ok. 1 passed") {
        bail!("{name}: `cargo test {}` is not one test that passes without it:\n{healthy}", test.join(" "));
    }
    git(tree, &["apply", &file.to_string_lossy()])
        .with_context(|| format!("{name} does not apply any more"))?;
    let sick = cargo_test(tree, place, test)?;
    git(tree, &["checkout", "--quiet", "."])?;
    if sick.contains("could not compile") {
        bail!("{name} does not compile:\n{sick}");
    }
    Ok(sick.contains("test result: FAILED. 0 passed; 1 failed"))
}

fn cargo_test(tree: &Path, place: &Path, test: &[String]) -> Result<String> {
    let output = cargo(tree)
        .arg("test")
        .args(test)
        .env("CARGO_TARGET_DIR", place.join("build"))
        .env("RUST_BACKTRACE", "0")
        .output()
        .context("run cargo test")?;
    let printed = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

fn git(folder: &Path, args: &[&str]) -> Result<()> {
    let status = Command::new("git").args(args).current_dir(folder).status().context("run git")?;
    if !status.success() {
        bail!("git {} failed", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_still_applies_and_names_a_test_that_exists() {
        let mutants = read_all().unwrap();
        assert!(mutants.len() >= 8, "{} mutants", mutants.len());
        for mutant in mutants {
            let file = mutant.file.to_string_lossy().into_owned();
            let applies =
                Command::new("git").args(["apply", "--check", &file]).current_dir(root()).status().unwrap();
            assert!(applies.success(), "{} does not apply any more", mutant.name);
            let test = mutant.test.last().unwrap().rsplit("::").next().unwrap().to_owned();
            let found =
                Command::new("git").args(["grep", "-q", &format!("fn {test}(")]).current_dir(root()).status();
            assert!(found.unwrap().success(), "{}: there is no test {test}", mutant.name);
        }
    }
}
