//! Programs of this workspace, for a test or a demo that needs those of another package, and the list of tests that a
//! machine cannot run.

use crate::error::{Context, Error};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Cargo in the workspace in `root`, as a person would call it there. Cargo tells a program that it runs about its package;
/// build scripts that read it would be run again, and half the world after them: ring's does.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Builds programs of the workspace in `root`, and returns the folder they are in. They get the features that the whole
/// workspace has: after `cargo test --workspace` there is nothing to build.
pub fn build_programs(root: &Path, names: &[&str]) -> Result<PathBuf, Error> {
    let mut command = cargo(root);
    command.args(["build", "--locked", "--quiet", "--workspace"]).stdin(Stdio::null());
    command.args(names.iter().flat_map(|name| ["--bin", name]));
    let output = command.output().context(|| "run cargo".to_owned())?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::ProgramsNotBuilt { names: names.join(", "), output });
    }
    let own = std::env::current_exe().context(|| "find this program".to_owned())?;
    // The programs of a test are in a folder below.
    let folder = own.parent().unwrap_or(root);
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.to_owned())
}

/// Says on the terminal, past the harness that swallows what a passing test prints, that a test did not run; and writes
/// it down for `make test`, which counts them. `folder` is the test's `CARGO_TARGET_TMPDIR`.
///
/// # Panics
/// If it cannot be written down: a test that is skipped in silence would pass for one that holds.
#[expect(clippy::panic, reason = "called by tests alone")]
pub fn skipped(folder: &str, test: &str, why: &str) {
    let _ = writeln!(io::stderr(), "SKIPPED {test}: {why}");
    let list = Path::new(folder).join("skipped");
    let list = OpenOptions::new().create(true).append(true).open(list);
    if let Err(error) = list.and_then(|mut list| writeln!(list, "{test}: {why}")) {
        panic!("cannot write down that {test} was skipped: {error}");
    }
}
