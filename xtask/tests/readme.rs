//! What the README shows is what happens: the demo is run, and its commands are run in it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests: the line that fails is the message"
)]

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The demo in a folder of its own.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
}

impl Demo {
    fn start(folder: PathBuf) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["demo", "--folder", folder.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().any(|line| line.unwrap() == "ready"), "the demo ended before it was ready");
        Self { child, lines, folder }
    }

    /// What a shell prints, with the environment that the demo tells the user to export.
    fn shell(&self, command: &str) -> String {
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh")
            .args(["-c", &format!("{command} 2>&1")])
            .current_dir(root())
            .env("KUBECONFIG", self.folder.join("kubeconfig"))
            .env("PATH", path)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the commands that a document shows; each prints what stands below it.
    fn runs(&self, document: &str, least: usize) {
        let commands = sessions(&fs::read_to_string(root().join(document)).unwrap());
        assert!(commands.len() >= least, "{document}: {} commands", commands.len());
        for (command, shown) in commands {
            let printed = self.shell(&command);
            for line in shown.iter().filter(|line| line.trim() != "...") {
                let found = squeezed(&printed).contains(&squeezed(line));
                assert!(found, "{document}: `{command}` does not print:\n{line}\nbut:\n{printed}");
            }
        }
    }

    /// What it says until a line begins so.
    fn until(&mut self, last: &str) -> Vec<String> {
        let mut said = Vec::new();
        for line in self.lines.by_ref() {
            said.push(line.unwrap());
            if said.last().unwrap().starts_with(last) {
                return said;
            }
        }
        panic!("the demo ended before it said: {last}\n{}", said.join("\n"))
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.lines.by_ref().any(|line| line.unwrap() == "stopped; nothing is left behind"));
        assert!(self.child.wait().unwrap().success());
        assert!(!self.folder.exists(), "the folder is left behind");
    }
}

impl Drop for Demo {
    /// Also when an assertion failed: the demo must not outlive its test.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The commands of every `console` block, each with the output that is shown below it.
fn sessions(text: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    for block in text.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push((command.to_owned(), Vec::new())),
                None => commands.last_mut().unwrap().1.push(line.to_owned()),
            }
        }
    }
    commands
}

/// Runs of blanks count as one: columns are as wide as their content.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_readme_is_true_and_the_demo_comes_to_its_end() {
    let parent = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(parent.path().join("demo"));
    demo.runs("README.md", 6);
    for name in ["kubeconfig", "controller.kubeconfig"] {
        let mode = demo.folder.join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}: {mode:o}");
    }
    demo.until("the machine is back with its owner");
    let eject = demo.until("the machine is lent again, and its agent finds no reason to take it back");
    times_are_in_order(&eject);
    demo.runs("docs/machines.md", 2);
    demo.runs("docs/get-my-machine-back.md", 2);
    demo.stop();
}

/// The table of the eject: every step is there, in its order, and the owner has waited for seconds and not for minutes.
fn times_are_in_order(lines: &[String]) {
    let steps = [
        "exec",
        "seen",
        "annotated",
        "accepted",
        "pods gone",
        "Machine deleted",
        "schedule disabled",
        "Disabled",
    ];
    let row = |line: &String| {
        let (seconds, rest) = line.trim().split_once(" s  ")?;
        Some((seconds.parse::<f64>().ok()?, rest.split("  ").next()?.trim().to_owned()))
    };
    let rows: Vec<(f64, String)> = lines.iter().filter_map(row).collect();
    let words: Vec<&str> = rows.iter().map(|(_, word)| word.as_str()).collect();
    assert_eq!(words, steps, "{}", lines.join("\n"));
    assert!(rows.is_sorted_by_key(|(seconds, _)| *seconds), "{rows:?}");
    assert!(rows.last().unwrap().0 < 30.0, "{rows:?}");
    assert!(lines.iter().any(|line| line.starts_with("demo/workstation-1: lent again by its schedule")));
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for file in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for target in text.split("`make ").skip(1) {
            let target: String = target.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            assert!(makefile.contains(&format!("\n{target}: ")), "{file}: `make {target}` does not exist");
        }
    }
}

/// The texts of all files below a folder that end so.
fn texts(folder: &Path, ending: &str) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&texts(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
    all
}

#[test]
fn every_test_and_mutant_of_the_threat_model_exists() {
    let text = fs::read_to_string(root().join("docs/threat-model.md")).unwrap();
    let code = texts(&root().join("crates"), ".rs");
    let is_test = |word: &&str| {
        word.matches('_').count() > 2
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let tests: Vec<&str> = text.split('`').filter(is_test).collect();
    assert!(tests.len() > 30, "{tests:?}");
    for test in tests {
        let is_there = code.contains(&format!("fn {test}(")) || code.contains(&format!("    {test},"));
        assert!(is_there, "docs/threat-model.md: there is no test {test}");
    }
    let files: Vec<&str> = text.split_whitespace().filter(|it| it.contains("/tests/")).collect();
    for file in files {
        let file = file.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        assert!(
            root().join("crates").join(file).exists() || root().join(file).exists(),
            "docs/threat-model.md: {file}"
        );
    }
    let mutants: Vec<String> = fs::read_dir(root().join("mutants"))
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    for rest in text.split("mutant").skip(1) {
        let numbers = rest
            .trim_start_matches('s')
            .split(|c: char| !c.is_ascii_digit() && c != ' ' && c != ',')
            .next()
            .unwrap();
        for number in numbers.split([' ', ',']).filter(|it| !it.is_empty()) {
            let is_it = |name: &String| name.starts_with(&format!("{number}-"));
            assert!(mutants.iter().any(is_it), "docs/threat-model.md: there is no mutant {number}");
        }
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let documents = [
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "docs/advisories.md",
        "docs/schedules.md",
        "docs/machines.md",
        "docs/get-my-machine-back.md",
        "docs/metrics.md",
        "docs/threat-model.md",
    ];
    let mut documents = documents.map(|file| root().join(file)).to_vec();
    documents.extend(fs::read_dir(root().join("docs/adr")).unwrap().map(|entry| entry.unwrap().path()));
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let is_local = !target.contains("://") && !target.starts_with('#');
            let path = document.parent().unwrap().join(target.split('#').next().unwrap());
            assert!(!is_local || path.exists(), "{}: {target} does not exist", document.display());
        }
    }
}
