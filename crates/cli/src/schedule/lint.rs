//! Schedules that are valid and probably not meant, and embedded specs that k0smotron could not use, in many files at once.

use super::LintArgs;
use super::source::{Machine, machines_in};
use crate::output::{self, ERROR, Lines, WARNED, print};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use fivespot_api::lint_provider_specs;
use fivespot_core::schedule::{self, Days, Hours};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// A line for each finding
    Text,
    /// For scripts
    Json,
}

/// Something to say about one machine.
struct Finding {
    file: String,
    /// Counted from 1; 0 is the file as a whole.
    document: usize,
    name: String,
    is_error: bool,
    message: String,
}

pub(crate) fn run(args: &LintArgs) -> Result<ExitCode> {
    let (mut files, mut findings, mut machines) = (Vec::new(), Vec::new(), 0);
    for path in &args.files {
        collect(path, &mut files, &mut findings)?;
    }
    for file in &files {
        // A file that cannot be read is one finding; the others are still looked at.
        match machines_in(file) {
            Ok(found) => {
                machines += found.len();
                for machine in found {
                    findings.extend(look_at(&machine, args.from.as_deref())?);
                }
            }
            Err(error) => findings.push(Finding::of_file(file, format!("{error:#}"))),
        }
    }
    if machines == 0 && findings.is_empty() {
        let named: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        bail!("no ScheduledMachine in {}", named.join(", "));
    }
    match args.output {
        Format::Text => lines(&findings, machines).print()?,
        Format::Json => print(&output::json(&json!({
            "machines": machines,
            "findings": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
        }))?)?,
    };
    Ok(if findings.iter().any(|finding| finding.is_error) {
        ExitCode::from(ERROR)
    } else if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WARNED)
    })
}

/// A file itself; of a folder every YAML and JSON file below it, in order.
fn collect(path: &Path, files: &mut Vec<PathBuf>, findings: &mut Vec<Finding>) -> Result<()> {
    if path == Path::new("-") || !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let what = || format!("cannot read {}", path.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).with_context(what)? {
        entries.push(entry.with_context(what)?.path());
    }
    entries.sort();
    for entry in entries {
        // What kubectl reads in a folder; a link to a folder may lead back here.
        let is_manifest = entry
            .extension()
            .is_some_and(|ending| ["yaml", "yml", "json"].map(Some).contains(&ending.to_str()));
        let is_folder = entry.is_dir();
        if is_manifest && !is_folder && !entry.is_file() {
            // A pipe would be waited for, and nobody named it.
            let why = "it is not a file, or a link that leads to none: name it by itself to have it read";
            findings.push(Finding::of_file(&entry, why.to_owned()));
        } else if is_manifest || (is_folder && !entry.is_symlink()) {
            collect(&entry, files, findings)?;
        }
    }
    Ok(())
}

fn look_at(machine: &Machine, from: Option<&str>) -> Result<Vec<Finding>> {
    let finding = |is_error, message| Finding {
        file: machine.place.file.clone(),
        document: machine.place.document,
        name: machine.name.clone(),
        is_error,
        message,
    };
    let (object, intent) = match &machine.verdict {
        Ok(read) => read,
        Err(errors) => {
            return Ok(errors.iter().map(|error| finding(true, error.clone())).collect());
        }
    };
    let now = super::instant(from, intent.schedule.zone())?;
    let written = &object.spec.schedule;
    let days: Vec<Days> = written.days_of_week.iter().filter_map(|item| Days::parse(item).ok()).collect();
    let hours: Vec<Hours> = written.hours_of_day.iter().filter_map(|item| Hours::parse(item).ok()).collect();
    let found = schedule::lint(&intent.schedule, now).into_iter().chain(schedule::redundant(&days, &hours));
    let of_provider = lint_provider_specs(&object.spec).into_iter().map(|found| found.to_string());
    let found = found.map(|warning| warning.to_string()).chain(of_provider);
    Ok(found.map(|warning| finding(false, warning)).collect())
}

fn lines(findings: &[Finding], machines: usize) -> Lines {
    let mut all = Lines::default();
    for Finding { file, document, name, is_error, message } in findings {
        let level = if *is_error { "error" } else { "warning" };
        all.line(&match document {
            0 => format!("{file}: {level}: {message}"),
            _ => format!("{file}: document {document}, {name}: {level}: {message}"),
        });
    }
    let errors = findings.iter().filter(|finding| finding.is_error).count();
    all.line(&format!("{machines} machines, {errors} errors, {} warnings", findings.len() - errors));
    all
}

impl Finding {
    fn of_file(file: &Path, message: String) -> Self {
        Self { file: file.display().to_string(), document: 0, name: String::new(), is_error: true, message }
    }

    fn to_json(&self) -> Value {
        json!({
            "file": self.file,
            "document": self.document,
            "name": self.name,
            "level": if self.is_error { "error" } else { "warning" },
            "message": self.message,
        })
    }
}
