//! The wish of a user, checked whole.
//!
//! The CRD refuses most malformed objects at the door. What reaches the controller all the same (objects
//! older than a rule, a zone that does not exist, a cluster without the policies) is checked here again by
//! the same rules: the outcome is an [`Intent`] whose every part can be trusted, or [`Invalid`] with *all*
//! errors. `crates/api/tests/table/` holds the cases that both sides are run against.

use crate::duration;
use crate::field::{Invalid, Problems};
use crate::limits::{
    API_VERSION_CHARS, BOOTSTRAP_GROUPS, COMMAND_CHARS, COMMANDS, CRON_CHARS, DAYS_CHARS, DAYS_ITEMS,
    HOURS_CHARS, HOURS_ITEMS, INFRASTRUCTURE_GROUPS, LABEL_VALUE_CHARS, OBJECT_NAME_CHARS, PRIORITY,
    TAINT_EFFECTS, TAINT_KEY_CHARS, TAINTS, TEMPLATE_ENTRIES, TIMEZONE_CHARS,
};
use crate::name;
use crate::schedule::{Cron, Days, Hours, Rule, Schedule};
use crate::zone;
use jiff::tz::TimeZone;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a user wrote, as text: the input of [`Intent::read`].
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    /// Name of the object itself.
    pub name: &'a str,
    /// Namespace of the object itself.
    pub namespace: &'a str,
    /// `spec.schedule`.
    pub schedule: DraftSchedule<'a>,
    /// `spec.clusterName`.
    pub cluster_name: &'a str,
    /// `spec.bootstrapSpec`.
    pub bootstrap: DraftObject<'a>,
    /// `spec.infrastructureSpec`.
    pub infrastructure: DraftObject<'a>,
    /// `spec.machineTemplate.labels`.
    pub labels: &'a BTreeMap<String, String>,
    /// `spec.machineTemplate.annotations`.
    pub annotations: &'a BTreeMap<String, String>,
    /// `spec.priority`.
    pub priority: i64,
    /// `spec.gracefulShutdownTimeout`.
    pub graceful_shutdown_timeout: &'a str,
    /// `spec.nodeDrainTimeout`.
    pub node_drain_timeout: &'a str,
    /// `spec.killIfCommands`; absent is empty.
    pub kill_if_commands: &'a [String],
    /// `spec.nodeTaints`.
    pub node_taints: &'a [Taint<String>],
    /// `spec.kubeconfigSecretRef`: name and key.
    pub kubeconfig_secret: Option<(&'a str, &'a str)>,
}

/// `spec.schedule` as text.
#[derive(Debug, Clone, Copy)]
pub struct DraftSchedule<'a> {
    /// `daysOfWeek`.
    pub days_of_week: &'a [String],
    /// `hoursOfDay`.
    pub hours_of_day: &'a [String],
    /// `cron`.
    pub cron: Option<&'a str>,
    /// `timezone`.
    pub timezone: &'a str,
}

/// The envelope of an embedded object as text. The inner `spec` is passed through unread.
#[derive(Debug, Clone, Copy)]
pub struct DraftObject<'a> {
    /// `apiVersion`.
    pub api_version: &'a str,
    /// `kind`.
    pub kind: &'a str,
    /// `namespace`, if given.
    pub namespace: Option<&'a str>,
}

/// A valid wish.
#[derive(Debug, Clone, PartialEq)]
pub struct Intent {
    /// When the machine is lent.
    pub schedule: Schedule,
    /// The cluster it joins.
    pub cluster_name: String,
    /// Type of the bootstrap object.
    pub bootstrap: ObjectType,
    /// Type of the infrastructure object.
    pub infrastructure: ObjectType,
    /// Higher goes first.
    pub priority: u8,
    /// Whole budget of a graceful exit.
    pub graceful_shutdown_timeout: Duration,
    /// Bound of the eviction part.
    pub node_drain_timeout: Duration,
    /// Programs whose start takes the machine back.
    pub kill_if_commands: Vec<String>,
    /// Taints for the Node.
    pub node_taints: Vec<Taint<Effect>>,
}

/// Group, version and kind of an embedded object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectType {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// A taint; its identity is (key, effect).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint<E> {
    /// Qualified name.
    pub key: String,
    /// May be empty.
    pub value: String,
    /// What it does: text in a draft, [`Effect`] in an intent.
    pub effect: E,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away if they can.
    PreferNoSchedule,
    /// Running pods are evicted too.
    NoExecute,
}

impl Effect {
    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }

    /// The API's spelling.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl Intent {
    /// Checks a draft whole: an intent, or every error in the order of the fields.
    pub fn read(draft: &Draft<'_>) -> Result<Self, Invalid> {
        let mut problems = Problems::default();
        let p = &mut problems;
        p.keep("metadata.name", name::at_most(draft.name, LABEL_VALUE_CHARS));
        let rule = read_rule(p, &draft.schedule);
        let zone = read_zone(p, draft.schedule.timezone);
        p.keep("spec.clusterName", name::labelled_object_name(draft.cluster_name));
        let namespace = draft.namespace;
        let bootstrap = Envelope { path: "spec.bootstrapSpec", groups: &BOOTSTRAP_GROUPS, namespace };
        let bootstrap = bootstrap.read(p, &draft.bootstrap);
        let infrastructure =
            Envelope { path: "spec.infrastructureSpec", groups: &INFRASTRUCTURE_GROUPS, namespace };
        let infrastructure = infrastructure.read(p, &draft.infrastructure);
        check_labels(p, draft.labels);
        check_keys(p, "spec.machineTemplate.annotations", draft.annotations);
        let priority = read_priority(p, draft.priority);
        let graceful =
            p.keep("spec.gracefulShutdownTimeout", duration::parse(draft.graceful_shutdown_timeout));
        let drain = p.keep("spec.nodeDrainTimeout", duration::parse(draft.node_drain_timeout));
        check_commands(p, draft.kill_if_commands);
        let node_taints = read_taints(p, draft.node_taints);
        check_kubeconfig_secret(p, draft.kubeconfig_secret);
        let intent = || {
            Some(Self {
                schedule: Schedule::new(rule?, zone?),
                cluster_name: draft.cluster_name.to_owned(),
                bootstrap: bootstrap?,
                infrastructure: infrastructure?,
                priority: priority?,
                graceful_shutdown_timeout: graceful?,
                node_drain_timeout: drain?,
                kill_if_commands: draft.kill_if_commands.to_vec(),
                node_taints,
            })
        };
        let intent = intent();
        problems.finish(intent)
    }
}

fn read_rule(p: &mut Problems, draft: &DraftSchedule<'_>) -> Option<Rule> {
    let lists = !draft.days_of_week.is_empty() || !draft.hours_of_day.is_empty();
    let days = read_days(p, draft.days_of_week);
    let hours = read_hours(p, draft.hours_of_day);
    match draft.cron {
        Some(cron) => {
            if lists {
                p.note(
                    "spec.schedule.cron",
                    "excludes daysOfWeek and hoursOfDay: keep the one or the others",
                );
            }
            p.keep("spec.schedule.cron", name::at_most(cron, CRON_CHARS))?;
            p.keep("spec.schedule.cron", Cron::parse(cron)).map(Rule::Cron)
        }
        None if lists => Some(Rule::Calendar { days: days?, hours: hours? }),
        None => {
            p.note("spec.schedule", "never says when: give daysOfWeek, hoursOfDay or cron");
            None
        }
    }
}

fn read_days(p: &mut Problems, items: &[String]) -> Option<Days> {
    let read = |item: &str| Days::parse(item).map_err(|e| e.to_string());
    let sets = read_items(
        p,
        &List { path: "spec.schedule.daysOfWeek", items, most: DAYS_ITEMS, chars: DAYS_CHARS },
        read,
    )?;
    Some(sets.into_iter().reduce(Days::union).unwrap_or(Days::ALL))
}

fn read_hours(p: &mut Problems, items: &[String]) -> Option<Hours> {
    let read = |item: &str| Hours::parse(item).map_err(|e| e.to_string());
    let sets = read_items(
        p,
        &List { path: "spec.schedule.hoursOfDay", items, most: HOURS_ITEMS, chars: HOURS_CHARS },
        read,
    )?;
    Some(sets.into_iter().reduce(Hours::union).unwrap_or(Hours::ALL))
}

fn read_zone(p: &mut Problems, timezone: &str) -> Option<TimeZone> {
    let path = "spec.schedule.timezone";
    p.keep(path, name::at_most(timezone, TIMEZONE_CHARS))?;
    p.keep(path, zone::lookup(timezone))
}

/// A bounded list of texts at one path.
struct List<'a> {
    path: &'a str,
    items: &'a [String],
    most: usize,
    chars: usize,
}

/// Reads every item, noting every error; `None` if there was one.
fn read_items<T>(
    p: &mut Problems,
    list: &List<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Option<Vec<T>> {
    let List { path, items, most, chars } = list;
    let fits = check_count(p, path, items.len(), *most);
    let read_one = |(i, item): (usize, &String)| {
        let path = format!("{path}[{i}]");
        p.keep(&path, name::at_most(item, *chars))?;
        p.keep(&path, read(item))
    };
    let read: Vec<Option<T>> = items.iter().enumerate().map(read_one).collect();
    fits?;
    read.into_iter().collect()
}

fn check_count(p: &mut Problems, path: &str, count: usize, most: usize) -> Option<()> {
    if count > most {
        p.note(path, format!("has {count} entries: at most {most} are allowed"));
        return None;
    }
    Some(())
}

/// Where an embedded object stands and what may stand there.
struct Envelope<'a> {
    path: &'static str,
    groups: &'a [&'static str],
    namespace: &'a str,
}

impl Envelope<'_> {
    fn read(&self, p: &mut Problems, draft: &DraftObject<'_>) -> Option<ObjectType> {
        let path = self.path;
        let group_version = self.read_api_version(draft.api_version);
        let group_version = p.keep(&format!("{path}.apiVersion"), group_version);
        let kind = p.keep(&format!("{path}.kind"), read_kind(draft.kind));
        if let Some(namespace) = draft.namespace.filter(|&namespace| namespace != self.namespace) {
            let own = self.namespace;
            p.note(
                format!("{path}.namespace"),
                format!(
                    "\"{namespace}\" is not the namespace of this object: write \"{own}\" or leave it out"
                ),
            );
        }
        let ((group, version), kind) = (group_version?, kind?);
        Some(ObjectType { group, version, kind })
    }

    fn read_api_version(&self, text: &str) -> Result<(String, String), String> {
        name::at_most(text, API_VERSION_CHARS).map_err(|e| e.to_string())?;
        let is_version = |v: &str| {
            v.strip_prefix('v').is_some_and(|rest| {
                rest.starts_with(|c: char| c.is_ascii_digit())
                    && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            })
        };
        match text.split_once('/') {
            Some((group, version)) if self.groups.contains(&group) && is_version(version) => {
                Ok((group.to_owned(), version.to_owned()))
            }
            _ => Err(format!("\"{text}\" is not allowed: write a version of {}", self.groups.join(" or "))),
        }
    }
}

fn read_kind(kind: &str) -> Result<String, String> {
    name::at_most(kind, LABEL_VALUE_CHARS).map_err(|e| e.to_string())?;
    let well_formed =
        kind.starts_with(|c: char| c.is_ascii_uppercase()) && kind.chars().all(|c| c.is_ascii_alphanumeric());
    if well_formed {
        return Ok(kind.to_owned());
    }
    Err(format!(
        "\"{kind}\" is not a kind: write letters and digits that begin with a capital, such as RemoteMachine"
    ))
}

fn check_labels(p: &mut Problems, labels: &BTreeMap<String, String>) {
    let path = "spec.machineTemplate.labels";
    check_keys(p, path, labels);
    for (key, value) in labels {
        p.keep(&format!("{path}[{key}]"), name::label_value(value));
    }
}

fn check_keys(p: &mut Problems, path: &str, map: &BTreeMap<String, String>) {
    check_count(p, path, map.len(), TEMPLATE_ENTRIES);
    for key in map.keys() {
        p.keep(path, name::free_key(key));
    }
}

fn read_priority(p: &mut Problems, priority: i64) -> Option<u8> {
    let fits = u8::try_from(priority).ok().filter(|_| PRIORITY.contains(&priority));
    let (least, most) = PRIORITY.into_inner();
    let problem = || format!("{priority} is out of range: write a number from {least} to {most}");
    p.keep("spec.priority", fits.ok_or_else(problem))
}

fn check_commands(p: &mut Problems, commands: &[String]) {
    let list = List { path: "spec.killIfCommands", items: commands, most: COMMANDS, chars: COMMAND_CHARS };
    read_items(p, &list, check_command);
}

/// An entry is matched as a substring of command lines too: a blank one would match nearly every process.
fn check_command(command: &str) -> Result<(), String> {
    if command.chars().any(char::is_control) {
        return Err("has a control character: write the program's name as `ps` shows it".to_owned());
    }
    if command.chars().all(|c| c == ' ') {
        return Err("is blank and would match every program: write a program's name".to_owned());
    }
    Ok(())
}

fn read_taints(p: &mut Problems, drafts: &[Taint<String>]) -> Vec<Taint<Effect>> {
    let path = "spec.nodeTaints";
    check_count(p, path, drafts.len(), TAINTS);
    let mut seen = BTreeSet::new();
    let mut taints = Vec::new();
    for (i, draft) in drafts.iter().enumerate() {
        let Taint { key, value, effect } = draft;
        if !seen.insert((key, effect)) {
            p.note(
                format!("{path}[{i}]"),
                format!("repeats ({key}, {effect}): a key may have each effect once"),
            );
        }
        let key_fits = name::at_most(key, TAINT_KEY_CHARS).and_then(|()| name::free_key(key));
        p.keep(&format!("{path}[{i}].key"), key_fits);
        p.keep(&format!("{path}[{i}].value"), name::label_value(value));
        let known = Effect::parse(effect)
            .ok_or_else(|| format!("\"{effect}\" is not an effect: write {}", TAINT_EFFECTS.join(", ")));
        if let Some(effect) = p.keep(&format!("{path}[{i}].effect"), known) {
            taints.push(Taint { key: key.clone(), value: value.clone(), effect });
        }
    }
    taints
}

fn check_kubeconfig_secret(p: &mut Problems, secret: Option<(&str, &str)>) {
    let Some((name, key)) = secret else { return };
    p.keep("spec.kubeconfigSecretRef.name", name::object_name(name));
    let key_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let key_fits = !key.is_empty() && key.len() <= OBJECT_NAME_CHARS && key.chars().all(key_char);
    if !key_fits {
        let problem =
            format!("\"{key}\" is not a key of a Secret: write letters, digits, \"-\", \"_\" or \".\"");
        p.note("spec.kubeconfigSecretRef.key", problem);
    }
}
