//! Schedules that are valid and probably not meant, in many files at once.

use super::LintArgs;
use super::source::{Machine, machines_in};
use crate::output::{ERROR, WARNED, print};
use anyhow::{Context, Result};
use clap::ValueEnum;
use fivespot_core::schedule::{self, Days, Hours};
use serde_json::{Value, json};
use std::fmt::Write;
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
    document: usize,
    name: String,
    is_error: bool,
    message: String,
}

pub(crate) fn run(args: &LintArgs) -> Result<ExitCode> {
    let mut files = Vec::new();
    for path in &args.files {
        collect(path, &mut files)?;
    }
    let (mut findings, mut machines) = (Vec::new(), 0);
    for file in &files {
        for machine in machines_in(file)? {
            machines += 1;
            findings.extend(look_at(&machine, args.from.as_deref())?);
        }
    }
    let text = match args.output {
        Format::Text => text(&findings, machines),
        Format::Json => {
            serde_json::to_string_pretty(&json!({
                "machines": machines,
                "findings": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
            }))? + "\n"
        }
    };
    print(&text)?;
    Ok(if findings.iter().any(|finding| finding.is_error) {
        ExitCode::from(ERROR)
    } else if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WARNED)
    })
}

/// A file itself; of a folder every YAML file below it, in order.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
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
        let is_yaml = entry.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        if is_yaml || entry.is_dir() {
            collect(&entry, files)?;
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
    let intent = match &machine.verdict {
        Ok(intent) => intent,
        Err(errors) => {
            return Ok(errors.iter().map(|error| finding(true, error.clone())).collect());
        }
    };
    let now = super::instant(from, intent.schedule.zone())?;
    let texts = |field: &str| -> Vec<String> {
        let items = machine.object["spec"]["schedule"][field].as_array();
        items.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let days: Vec<Days> = texts("daysOfWeek").iter().filter_map(|item| Days::parse(item).ok()).collect();
    let hours: Vec<Hours> = texts("hoursOfDay").iter().filter_map(|item| Hours::parse(item).ok()).collect();
    let found = schedule::lint(&intent.schedule, now).into_iter().chain(schedule::redundant(&days, &hours));
    Ok(found.map(|warning| finding(false, warning.to_string())).collect())
}

fn text(findings: &[Finding], machines: usize) -> String {
    let mut out = String::new();
    for Finding { file, document, name, is_error, message } in findings {
        let level = if *is_error { "error" } else { "warning" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{file}: document {document}, {name}: {level}: {message}");
    }
    let errors = findings.iter().filter(|finding| finding.is_error).count();
    let _ = writeln!(out, "{machines} machines, {errors} errors, {} warnings", findings.len() - errors);
    out
}

impl Finding {
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
