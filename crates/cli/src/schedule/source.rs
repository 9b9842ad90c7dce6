//! Where schedules come from: files with ScheduledMachines, or the command line.

use anyhow::{Context, Result, anyhow, bail};
use fivespot_api::{ScheduledMachine, ScheduledMachineSpec, read_manifest};
use fivespot_cluster::{FileBound, read_file, read_stream};
use fivespot_core::field::{FieldError, Invalid, Problems};
use fivespot_core::intent::Intent;
use fivespot_core::schedule::{Cron, Days, Hours, Rule, Schedule};
use fivespot_core::zone;
use serde_json::Value;
use std::io::stdin;
use std::path::{Path, PathBuf};

/// A file with manifests: 1,024 documents, the most that the YAML reader takes, of 16 KiB each.
const FILE: FileBound = FileBound { bytes: 16 << 20, advice: "split it into several" };

#[derive(clap::Args)]
pub(crate) struct Source {
    /// A file with ScheduledMachines; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with_all = ["days", "hours", "cron", "timezone"])]
    file: Option<PathBuf>,
    /// Days, such as mon-fri
    #[arg(long, value_name = "DAYS")]
    days: Option<String>,
    /// Hours, such as 9-17; both ends are included
    #[arg(long, value_name = "HOURS")]
    hours: Option<String>,
    /// A cron expression, such as '* 9-16 * * mon-fri'; every minute that matches is lent
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["days", "hours"])]
    cron: Option<String>,
    /// Time zone of days, hours or cron [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
}

/// A schedule and what to call it.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    /// Namespace and name, or the rule itself: what tells it from others.
    pub(crate) identity: String,
    /// What keeps the machine out whatever the schedule says.
    pub(crate) held_by: Option<&'static str>,
}

impl Source {
    /// The schedules, or why the API server would refuse them.
    pub(crate) fn read(&self) -> Result<Result<Vec<Named>, Vec<String>>> {
        let Some(file) = &self.file else { return self.arguments() };
        let mut named = Vec::new();
        let mut refusals = Vec::new();
        for machine in machines_in(file)? {
            match machine.verdict {
                Ok((object, intent)) => {
                    let held_by = held_by(&object.spec);
                    let namespace = object.metadata.namespace.unwrap_or_default();
                    let identity = format!("{}.{namespace}", machine.name);
                    named.push(Named { name: machine.name, schedule: intent.schedule, identity, held_by });
                }
                Err(errors) => refusals.extend(machine.place.refusal(&machine.name, &errors)),
            }
        }
        if !refusals.is_empty() {
            return Ok(Err(refusals));
        }
        if named.is_empty() {
            bail!("{} holds no ScheduledMachine", file.display());
        }
        Ok(Ok(named))
    }

    fn arguments(&self) -> Result<Result<Vec<Named>, Vec<String>>> {
        let Self { days, hours, cron, timezone, .. } = self;
        if days.is_none() && hours.is_none() && cron.is_none() {
            bail!("no schedule: give -f FILE, --days, --hours or --cron");
        }
        let mut problems = Problems::default();
        let days = problems.keep("--days", days.as_deref().map_or(Ok(Days::ALL), Days::parse));
        let hours = problems.keep("--hours", hours.as_deref().map_or(Ok(Hours::ALL), Hours::parse));
        let cron = problems.keep("--cron", cron.as_deref().map(Cron::parse).transpose());
        let zone = problems.keep("--timezone", zone::lookup(timezone.as_deref().unwrap_or("UTC")));
        let schedule = || {
            let calendar = Rule::Calendar { days: days?, hours: hours? };
            Some(Schedule::new(cron?.map_or(calendar, Rule::Cron), zone?))
        };
        let schedule = schedule();
        Ok(match problems.finish(schedule) {
            Ok(schedule) => {
                let words =
                    format!("{} {}", schedule.rule(), schedule.zone().iana_name().unwrap_or_default());
                let identity = words.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
                Ok(vec![Named { name: "schedule".to_owned(), schedule, identity, held_by: None }])
            }
            Err(invalid) => Err(invalid.errors().iter().map(|error| format!("5spot: {error}")).collect()),
        })
    }
}

fn held_by(spec: &ScheduledMachineSpec) -> Option<&'static str> {
    if spec.kill_switch {
        return Some("killSwitch is true");
    }
    (!spec.schedule.enabled).then_some("schedule.enabled is false")
}

/// A ScheduledMachine in a file, and what the API server would say to it.
pub(crate) struct Machine {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) verdict: Result<(ScheduledMachine, Intent), Vec<String>>,
}

/// Where a document stands.
pub(crate) struct Place {
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) document: usize,
}

impl Place {
    /// The lines of a refusal, one for each error.
    pub(crate) fn refusal(&self, name: &str, errors: &[String]) -> Vec<String> {
        let Self { file, document } = self;
        let line = |error: &String| format!("{file}: document {document}, {name}: error: {error}");
        errors.iter().map(line).collect()
    }
}

/// Every ScheduledMachine in a file; documents of other groups are passed over.
pub(crate) fn machines_in(file: &Path) -> Result<Vec<Machine>> {
    let is_stdin = file == Path::new("-");
    let shown = if is_stdin { "standard input".to_owned() } else { file.display().to_string() };
    let text = if is_stdin { read_stream(stdin(), FILE) } else { read_file(file, FILE) };
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    // The error itself, on one line, without the lines of the file around it.
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| anyhow!("{shown} is not YAML that can be read: {}", error.without_snippet()))?;
    let objects = documents.into_iter().enumerate().flat_map(|(i, document)| {
        let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        let items = match document.get("items").and_then(Value::as_array) {
            Some(items) if is_list => items.clone(),
            _ => vec![document],
        };
        items.into_iter().map(move |object| (i + 1, object))
    });
    let is_ours = |object: &Value| {
        let group = object["apiVersion"].as_str().and_then(|text| text.split('/').next());
        group == Some("5spot.finos.org") || object["kind"] == "ScheduledMachine"
    };
    let read = |(document, object): (usize, Value)| {
        let name = object["metadata"]["name"].as_str().unwrap_or("(no name)").to_owned();
        let errors = |invalid: &Invalid| invalid.errors().iter().map(refusal).collect::<Vec<_>>();
        let verdict = read_manifest(&object).map_err(|invalid| errors(&invalid));
        Machine { place: Place { file: shown.clone(), document }, name, verdict }
    };
    Ok(objects.filter(|(_, object)| is_ours(object)).map(read).collect())
}

/// An error, and who refuses the object for it. Which zones exist is known to 5-Spot alone; the API server refuses
/// only names with letters that no zone has.
fn refusal(error: &FieldError) -> String {
    let judge = if error.path == "spec.schedule.timezone" { "5-Spot" } else { "the API server" };
    format!("{judge} would refuse this: {error}")
}
