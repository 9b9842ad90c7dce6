//! `5spot get`: every machine in one line.

use super::table::{span, table};
use super::{Format, GetArgs};
use crate::output::{Lines, WARNED, json, print, say, yaml};
use anyhow::{Context, Result, bail};
use fivespot_api::{ScheduledMachine, ScheduledMachineStatus};
use fivespot_cluster::{Key, Shell, Watched};
use fivespot_core::intent::Intent;
use fivespot_core::reclaim::{Reclaim, Stage};
use fivespot_core::slots::{Record, owner};
use fivespot_core::status::ConditionKind;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

/// By how many seconds the clocks of hosts may differ.
const SKEW: i64 = 30;

/// How often the cluster is looked at while it is watched.
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn run(args: &GetArgs) -> Result<ExitCode> {
    let (shell, namespace) = args.place.open().await?;
    let namespace = (!args.all_namespaces).then_some(namespace);
    let machines = read(&shell, namespace.as_deref(), &args.names).await?;
    let needs_a_person = machines.iter().any(|machine| machine.machine.needs_a_person());
    let code = if needs_a_person { ExitCode::from(WARNED) } else { ExitCode::SUCCESS };
    match args.output {
        Format::Json => print(&json(&list(&machines))?).map(|_| code),
        Format::Yaml => print(&yaml(&list(&machines))?).map(|_| code),
        Format::Text | Format::Wide if machines.is_empty() && !args.watch => {
            let place = namespace.map_or("any namespace".to_owned(), |it| format!("namespace {it}"));
            say(&format!("no ScheduledMachines in {place}"));
            Ok(ExitCode::SUCCESS)
        }
        Format::Text | Format::Wide => {
            let mut view = View { namespaces: args.all_namespaces, owners: None };
            if args.output == Format::Wide {
                view.owners = Some(Owners::read(&shell).await);
            }
            let rows: Vec<_> = std::iter::once(view.head())
                .chain(machines.iter().map(|machine| view.row(&machine.machine, Timestamp::now())))
                .collect();
            Lines::from_iter(table(&rows)).print()?;
            if !args.watch {
                return Ok(code);
            }
            watch(&shell, namespace.as_deref(), args, view, machines).await
        }
    }
}

/// Those with these names, or all. Whoever may read single machines alone gets those by their names.
async fn read(shell: &Shell, namespace: Option<&str>, names: &[String]) -> Result<Vec<Watched>> {
    let mut machines = match namespace {
        Some(namespace) if !names.is_empty() => read_named(shell, namespace, names).await?,
        _ => match shell.read(namespace, None).await {
            Err(error) if error.is_forbidden() => {
                return Err(error).context(
                    "you may not list all machines here; name yours, with -n and its namespace: 5spot get NAME",
                );
            }
            answer => answer?,
        },
    };
    machines.sort_by_key(Watched::key);
    for name in names {
        if !machines.iter().any(|machine| machine.key().name == *name) {
            let place = namespace.map_or("any namespace".to_owned(), |it| format!("namespace {it}"));
            bail!("there is no ScheduledMachine {name} in {place}");
        }
    }
    machines.retain(|machine| names.is_empty() || names.contains(&machine.key().name));
    Ok(machines)
}

async fn read_named(shell: &Shell, namespace: &str, names: &[String]) -> Result<Vec<Watched>> {
    let mut machines = Vec::new();
    for name in names.iter().collect::<BTreeSet<_>>() {
        machines.extend(shell.read_machine(namespace, name).await?);
    }
    Ok(machines)
}

/// Prints a line whenever one has changed, for ever.
async fn watch(
    shell: &Shell,
    namespace: Option<&str>,
    args: &GetArgs,
    mut view: View,
    first: Vec<Watched>,
) -> Result<ExitCode> {
    // What changes by itself, such as the time that is left, is no news.
    let essence = |view: &View, machine: &Watched| view.row(&machine.machine, Timestamp::UNIX_EPOCH);
    let mut known: BTreeMap<Key, Vec<String>> =
        first.iter().map(|machine| (machine.key(), essence(&view, machine))).collect();
    loop {
        tokio::time::sleep(LOOK).await;
        if view.owners.is_some() {
            view.owners = Some(Owners::read(shell).await);
        }
        let read = match namespace {
            Some(namespace) if !args.names.is_empty() => read_named(shell, namespace, &args.names).await,
            _ => read(shell, namespace, &[]).await,
        };
        let machines = match read {
            Ok(machines) => machines,
            Err(error) => {
                say(&format!("5spot: {error:#}"));
                continue;
            }
        };
        let wanted = |machine: &&Watched| args.names.is_empty() || args.names.contains(&machine.key().name);
        for machine in machines.iter().filter(wanted) {
            let row = essence(&view, machine);
            if known.insert(machine.key(), row.clone()).is_none_or(|before| before != row) {
                let row = view.row(&machine.machine, Timestamp::now());
                table(&[view.head(), row]).into_iter().skip(1).collect::<Lines>().print()?;
            }
        }
        known.retain(|key, _| machines.iter().any(|machine| machine.key() == *key));
    }
}

fn list(machines: &[Watched]) -> serde_json::Value {
    let items: Vec<_> = machines.iter().map(Watched::to_json).collect();
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Who looks after which machine, as far as it may be known: who may see machines may not be allowed to see leases.
struct Owners(Option<BTreeMap<u32, Record>>);

impl Owners {
    async fn read(shell: &Shell) -> Self {
        Self(shell.slots().await.ok())
    }

    /// The name of the instance; without one, the number of the slot.
    fn of(&self, machine: &ScheduledMachine, status: &ScheduledMachineStatus, now: Timestamp) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name) = (text(&machine.metadata.namespace), text(&machine.metadata.name));
        let Some(slot) = status.instance else { return "-".to_owned() };
        let Some(leases) = &self.0 else { return format!("slot {slot}") };
        let Some(holder) = owner(&namespace, &name, leases) else { return format!("none (slot {slot})") };
        let silent =
            holder.stamp.parse().map_or(0, |renewed: Timestamp| now.duration_since(renewed).as_secs());
        // Clocks differ, by less than this.
        let is_dead = silent > i64::try_from(holder.duration.as_secs()).unwrap_or(0) + SKEW;
        if is_dead { format!("{} (silent for {})", holder.name, span(silent)) } else { holder.name.clone() }
    }
}

/// Which columns there are.
struct View {
    namespaces: bool,
    /// Without them, only the most important columns.
    owners: Option<Owners>,
}

impl View {
    fn head(&self) -> Vec<String> {
        let mut head = vec!["NAME", "PHASE", "WINDOW", "NEXT", "NODE", "REASON"];
        if self.namespaces {
            head.insert(0, "NAMESPACE");
        }
        if self.owners.is_some() {
            head.extend(["CLUSTER", "PRIORITY", "INSTANCE", "MESSAGE"]);
        }
        head.into_iter().map(str::to_owned).collect()
    }

    fn row(&self, machine: &ScheduledMachine, now: Timestamp) -> Vec<String> {
        let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
        let status = machine.status.clone().unwrap_or_default();
        let name = text(machine.metadata.name.as_deref());
        let (window, next) = window(machine, now);
        let mut row = vec![
            name,
            text(status.phase.as_deref()),
            window,
            next,
            text(status.node_ref.as_ref().map(|node| node.name.as_str())),
            reason(&status),
        ];
        if self.namespaces {
            row.insert(0, text(machine.metadata.namespace.as_deref()));
        }
        if let Some(owners) = &self.owners {
            row.push(machine.spec.cluster_name.clone());
            row.push(machine.spec.priority.to_string());
            row.push(owners.of(machine, &status, now));
            row.push(text(status.message.as_deref()));
        }
        row
    }
}

/// Why it is as it is, in a word; with the reason of a reclaim, or that no reclaim agent looks.
fn reason(status: &ScheduledMachineStatus) -> String {
    let word = |kind: ConditionKind| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == kind.word());
        condition.map(|condition| condition.reason.clone())
    };
    match stage(status) {
        Stage::Over => {
            let ready = word(ConditionKind::Ready).unwrap_or("-".to_owned());
            // Nobody would otherwise notice: the machine is lent, and all else is well.
            let agent = word(ConditionKind::ReclaimAgent);
            let agent = agent.filter(|agent| ["Missing", "Degraded"].contains(&agent.as_str()));
            agent.map_or(ready.clone(), |agent| format!("{ready} (reclaim agent: {agent})"))
        }
        Stage::UnderWay | Stage::Held => {
            let why = status.reclaim.as_ref().and_then(|reclaim| reclaim.reason.as_deref());
            let word = word(ConditionKind::Scheduled).unwrap_or_default();
            why.map_or(word.clone(), |why| format!("{word} ({why})"))
        }
    }
}

/// How far its owner is with taking it back.
fn stage(status: &ScheduledMachineStatus) -> Stage {
    status.reclaim.as_ref().map_or(Stage::Over, |reclaim| Reclaim::from(reclaim).stage())
}

/// Whether the window is open, and the next change that the controller will act on.
fn window(machine: &ScheduledMachine, now: Timestamp) -> (String, String) {
    let Ok(intent) = Intent::try_from(machine) else { return ("invalid".to_owned(), "-".to_owned()) };
    let status = machine.status.as_ref();
    // At no particular time: what the controller saw last.
    if now == Timestamp::UNIX_EPOCH {
        let open = status.and_then(|status| status.in_schedule).map_or("-".to_owned(), |it| it.to_string());
        let next = status.and_then(|status| status.next_transition.as_ref()).map(|next| next.0.to_string());
        return (open, next.unwrap_or_default());
    }
    let window = intent.schedule.at(now);
    let word = if window.active { "open" } else { "closed" }.to_owned();
    let draining = status
        .and_then(|status| status.shutdown.as_ref().and(status.next_cleanup.as_ref()))
        .map(|deadline| format!("drain ends in {}", span(deadline.0.as_second() - now.as_second())));
    let is_taken_back = status.is_some_and(|status| stage(status) == Stage::Held);
    let held = !machine.spec.schedule.enabled || machine.spec.kill_switch;
    let next = match window.until {
        _ if draining.is_some() => draining.unwrap_or_default(),
        _ if is_taken_back => "until resumed".to_owned(),
        _ if held => "-".to_owned(),
        None => "never".to_owned(),
        Some(until) => {
            let there = until.to_zoned(intent.schedule.zone().clone());
            let word = if window.active { "closes" } else { "opens" };
            let when = span(until.as_second() - now.as_second());
            format!("{word} in {when} ({})", there.strftime("%a %H:%M %Z"))
        }
    };
    (word, next)
}
