//! Deliberate wrong changes, each of which a named test must catch.
//!
//! A patch in `mutants/` begins with lines of prose: what it breaks, and `Caught-by:` with the arguments of the
//! `cargo test` that must fail with it. It must fail by that very test: a mutant that does not compile proves nothing.
//!
//! First all these tests pass without any change, those of one program together. Then each mutant is built and tried, in
//! two copies of what is committed: while a test waits in one, the other is built.

use crate::root;
use anyhow::{Context, Result, bail};
use fivespot_testenv::cargo;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

/// Copies that mutants are tried in. A test waits most of its time, a build does not.
const LANES: usize = 2;

/// Programs whose tests measure, or change what all processes of the host share: no other test runs beside them.
const UNDISTURBED: [&str; 3] = ["kernel", "node", "load"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only those whose file name contains one of these
    #[arg(value_name = "NAME")]
    only: Vec<String>,
}

/// One wrong change.
struct Mutant {
    name: String,
    file: PathBuf,
    /// Arguments of cargo, and the name of the test at their end.
    test: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let wanted =
        |mutant: &Mutant| args.only.is_empty() || args.only.iter().any(|name| mutant.name.contains(name));
    let mutants: Vec<Mutant> = read_all()?.into_iter().filter(wanted).collect();
    if mutants.is_empty() {
        bail!("there is no such mutant in mutants/");
    }
    let lanes = (0..LANES.min(mutants.len())).map(Lane::check_out).collect::<Result<Vec<Lane>>>()?;
    let began = Instant::now();
    lanes[0].pass_unchanged(&mutants)?;
    println!("the tests pass without any change, {:.0} s", began.elapsed().as_secs_f32());
    let survivors = try_all(&lanes, &mutants)?;
    for lane in &lanes {
        lane.remove()?;
    }
    if survivors.is_empty() {
        println!("all {} mutants were caught", mutants.len());
        return Ok(());
    }
    bail!("not caught: {}", survivors.join(", "))
}

/// Tries mutants, as many at a time as there are lanes, and returns the names of those that were not caught.
fn try_all(lanes: &[Lane], mutants: &[Mutant]) -> Result<Vec<String>> {
    let queue = Mutex::new(mutants.iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let turns = Turns::default();
    let work = |lane: &Lane| -> Result<Vec<String>> {
        let mut survivors = Vec::new();
        while let Some((n, mutant)) = next() {
            let began = Instant::now();
            let caught = lane.catches(mutant, &turns)?;
            let word = if caught { "caught" } else { "SURVIVED" };
            let (took, test) = (began.elapsed().as_secs_f32(), mutant.test.join(" "));
            println!("[{} of {}] {}\n    {word} by {test}, {took:.0} s", n + 1, mutants.len(), mutant.name);
            if !caught {
                survivors.push(mutant.name.clone());
            }
        }
        Ok(survivors)
    };
    let done: Vec<Result<Vec<String>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| work(lane))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    Ok(done.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// Who may do what at the moment.
#[derive(Default)]
struct Turns {
    building: Mutex<()>,
    /// Written to by a test that must not be disturbed, read by the others.
    machine: RwLock<()>,
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
struct Lane {
    tree: PathBuf,
    build: PathBuf,
}

impl Lane {
    fn check_out(number: usize) -> Result<Self> {
        let place = root().join(format!("target/mutants/{number}"));
        let lane = Self { tree: place.join("tree"), build: place.join("build") };
        git(&root(), &["worktree", "prune"])?;
        if lane.tree.exists() {
            lane.remove()?;
        }
        git(&root(), &["worktree", "add", "--detach", "--quiet", &lane.tree.to_string_lossy(), "HEAD"])?;
        Ok(lane)
    }

    fn remove(&self) -> Result<()> {
        git(&root(), &["worktree", "remove", "--force", &self.tree.to_string_lossy()])
    }

    /// Sees that every test that must fail with a change passes without it.
    fn pass_unchanged(&self, mutants: &[Mutant]) -> Result<()> {
        let mut programs: BTreeMap<&[String], BTreeSet<&String>> = BTreeMap::new();
        for mutant in mutants {
            let (name, program) =
                mutant.test.split_last().with_context(|| format!("{} names no test", mutant.name))?;
            programs.entry(program).or_default().insert(name);
        }
        for (program, names) in programs {
            let mut args = program.to_vec();
            args.push("--".to_owned());
            args.extend(names.iter().map(|name| (*name).clone()));
            let printed = self.cargo_test(&args)?;
            if !printed.contains(&format!("test result: ok. {} passed", names.len())) {
                bail!("`cargo test {}` is not {} tests that pass:\n{printed}", args.join(" "), names.len());
            }
        }
        Ok(())
    }

    /// Whether the named test fails with the change.
    fn catches(&self, mutant: &Mutant, turns: &Turns) -> Result<bool> {
        let Mutant { name, file, test } = mutant;
        git(&self.tree, &["apply", &file.to_string_lossy()])
            .with_context(|| format!("{name} does not apply any more"))?;
        {
            let _turn = turns.building.lock().unwrap_or_else(PoisonError::into_inner);
            let built = self.cargo_test(&[test.as_slice(), &["--no-run".to_owned()]].concat())?;
            if built.contains("could not compile") {
                bail!("{name} does not compile:\n{built}");
            }
        }
        let is_undisturbed = test.iter().any(|word| UNDISTURBED.contains(&word.as_str()));
        let printed = if is_undisturbed {
            let _turn = turns.machine.write().unwrap_or_else(PoisonError::into_inner);
            self.cargo_test(test)?
        } else {
            let _turn = turns.machine.read().unwrap_or_else(PoisonError::into_inner);
            self.cargo_test(test)?
        };
        git(&self.tree, &["checkout", "--quiet", "."])?;
        Ok(printed.contains("test result: FAILED. 0 passed; 1 failed"))
    }

    fn cargo_test(&self, test: &[String]) -> Result<String> {
        let output = cargo(&self.tree)
            .arg("test")
            .args(test)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("RUST_BACKTRACE", "0")
            .output()
            .context("run cargo test")?;
        let printed = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
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
