//! `5spot explain`: what the controller would decide now, and why.
//!
//! It asks the same servers the same questions as the controller and runs the same function on the answers. It writes
//! nothing. Somebody who may not ask all of them is told what status says, and what they may not read ([`partial`]).

mod partial;

use super::table::span;
use super::{ExplainArgs, ExplainFormat, find, why};
use crate::output::{self, Lines, WARNED, print};
use anyhow::Result;
use fivespot_api::names::GITOPS_MANAGERS;
use fivespot_cluster::Watched;
use fivespot_core::drain::{Drain, Setting};
use fivespot_core::field::Invalid;
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Decision, Orders, Patience, Phase, Prepared, ReclaimAgent, Waiting, decide};
use fivespot_core::observed::{
    Access, Cluster, Machine, Needs, Node, Object, Observed, Pods, Presence, Served, Workload,
};
use fivespot_core::reclaim::{Reclaim, Stage};
use fivespot_core::status::{ConditionKind, Report, report};
use jiff::Timestamp;
use serde_json::json;
use std::process::ExitCode;

pub(super) async fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let (shell, namespace) = args.place.open().await?;
    let watched = find(&shell, &namespace, &args.name).await?;
    let now = Timestamp::now();
    let tools = GITOPS_MANAGERS.map(str::to_owned);
    let orders = watched.orders(Patience::Endless, &tools);
    let wish = Intent::try_from(&watched.machine);
    let surroundings = shell.surroundings(&watched).await;
    if surroundings.is_partly_forbidden() {
        let page = partial::Page {
            watched: &watched,
            now,
            orders,
            wish: wish.as_ref(),
            surroundings: &surroundings,
        };
        return page.print(args.output);
    }
    shell.read_rivals(&namespace).await;
    // A single look asks the server for everything.
    let mut needs = Needs::OBJECTS;
    let (observed, decision) = loop {
        let observed = shell.observe(&watched, needs).await?;
        let decision = decide(now, &orders, wish.as_ref(), &observed);
        if decision.needs.within(needs) {
            let decision = decision.as_last_tried(&observed);
            break (observed, decision);
        }
        needs = needs.and(decision.needs);
    };
    let page = Page {
        watched: &watched,
        now,
        orders,
        wish: wish.as_ref(),
        observed: &observed,
        decision: &decision,
    };
    match args.output {
        ExplainFormat::Text => page.text().print()?,
        ExplainFormat::Json => print(&output::json(&page.json())?)?,
    };
    let is_stalled = decision.waiting.as_ref().is_some_and(Waiting::is_stalled);
    let needs_a_person = decision.phase == Phase::Error || is_stalled;
    Ok(if needs_a_person { ExitCode::from(WARNED) } else { ExitCode::SUCCESS })
}

/// Everything that is said about one machine.
struct Page<'a> {
    watched: &'a Watched,
    now: Timestamp,
    orders: Orders,
    wish: Result<&'a Intent, &'a Invalid>,
    observed: &'a Observed,
    decision: &'a Decision,
}

impl Page<'_> {
    fn text(&self) -> Lines {
        let mut out = Lines::default();
        // Writing to memory cannot fail.
        let _ = self.draw(&mut out);
        out
    }

    fn draw(&self, out: &mut Lines) -> std::fmt::Result {
        let Self { observed, decision, .. } = self;
        let report = report(decision, observed);
        writeln!(out, "{}: {}", self.watched.key(), decision.phase.word())?;
        writeln!(out, "  {}", report.message)?;
        if let Some(phase) = observed.memory.phase.filter(|phase| *phase != decision.phase) {
            writeln!(
                out,
                "  (status still says {}: the controller has not passed here since)",
                phase.word()
            )?;
        }
        writeln!(out)?;
        writeln!(out, "  window      {}", Self::window(self.wish, self.now))?;
        for order in self.orders() {
            writeln!(out, "  order       {order}")?;
        }
        writeln!(out, "  cluster     {}", self.cluster())?;
        writeln!(out, "  bootstrap   {}", of_part(&observed.bootstrap, self.now))?;
        writeln!(out, "  infra       {}", of_part(&observed.infrastructure, self.now))?;
        writeln!(out, "  machine     {}", of_machine(&observed.machine, self.now))?;
        for line in self.node() {
            writeln!(out, "  node        {line}")?;
        }
        if let Some(host) = unless_said(&report, ConditionKind::HostNotCleaned) {
            writeln!(out, "  host        {host}")?;
        }
        if let Some(taints) = condition(&report, ConditionKind::NodeTainted) {
            writeln!(out, "  taints      {taints}")?;
        }
        if decision.agent != ReclaimAgent::NotWanted {
            writeln!(out, "  agent       {}: {}", decision.agent.reason(), decision.agent)?;
        }
        if let Prepared::No { .. } = decision.prepared
            && let Some(why) = unless_said(&report, ConditionKind::Prepared)
        {
            writeln!(out, "  prepared    no, {why}")?;
        }
        writeln!(out)?;
        if decision.actions.is_empty() {
            writeln!(out, "  does        nothing now")?;
        }
        for action in &decision.actions {
            writeln!(out, "  does        {action}")?;
        }
        if let Some(waiting) = &decision.waiting {
            writeln!(out, "  waits       {}: {waiting}", waiting.reason())?;
        }
        match (decision.wake.at, decision.wake.poll) {
            (Some(at), _) => {
                writeln!(out, "  changes     {at}, in {}, if nothing else happens", self.until(at))?;
            }
            (None, None) => writeln!(out, "  changes     when something around it changes")?,
            (None, Some(_)) => {}
        }
        if let Some(poll) = decision.wake.poll {
            writeln!(
                out,
                "  looks       again every {}",
                span(i64::try_from(poll.as_secs()).unwrap_or(i64::MAX))
            )?;
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let Self { observed, decision, .. } = self;
        let report = report(decision, observed);
        let conditions: Vec<_> = report
            .conditions
            .iter()
            .map(|it| json!({"type": it.kind.word(), "status": it.status, "reason": it.reason, "message": it.message}))
            .collect();
        json!({
            "namespace": self.watched.key().namespace,
            "name": self.watched.key().name,
            "at": self.now.to_string(),
            "phase": decision.phase.word(),
            "phaseInStatus": observed.memory.phase.map(Phase::word),
            "message": report.message,
            "scheduled": decision.scheduled.word(),
            "orders": self.orders(),
            "windowOpen": report.in_schedule,
            "actions": decision.actions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "waiting": decision.waiting.as_ref().map(|it| json!({"reason": it.reason(), "message": it.to_string()})),
            "changesAt": decision.wake.at.map(|at| at.to_string()),
            "looksAgainSeconds": decision.wake.poll.map(|poll| poll.as_secs()),
            "conditions": conditions,
        })
    }

    fn until(&self, at: Timestamp) -> String {
        span(at.as_second() - self.now.as_second())
    }

    fn window(wish: Result<&Intent, &Invalid>, now: Timestamp) -> String {
        let intent = match wish {
            Ok(intent) => intent,
            Err(invalid) => return format!("cannot be read: {invalid}"),
        };
        let window = intent.schedule.at(now);
        let word = if window.active { "open" } else { "closed" };
        let zone = intent.schedule.zone();
        let until = window.until.map_or("for ever".to_owned(), |until| {
            let there = until.to_zoned(zone.clone());
            let left = span(until.as_second() - now.as_second());
            format!("until {} (in {left})", there.strftime("%a %Y-%m-%d %H:%M %Z"))
        });
        format!("{word} {until}; {} in {}", intent.schedule.rule(), zone.iana_name().unwrap_or("UTC"))
    }

    fn orders(&self) -> Vec<String> {
        Self::orders_in_words(&self.orders, self.observed.memory.reclaim.as_ref())
    }

    /// What the object is told to do whatever its schedule says; `reclaim` is the last one that is remembered.
    fn orders_in_words(orders: &Orders, reclaim: Option<&Reclaim>) -> Vec<String> {
        let Orders { deletion, kill_switch, enabled, paused, reclaim: calls, .. } = orders;
        let (kill_switch, enabled, paused) = (*kill_switch, *enabled, *paused);
        let mut all = Vec::new();
        let mut say = |given: bool, words: &str| {
            if given {
                all.push(words.to_owned());
            }
        };
        say(deletion.is_some(), "the object is being deleted");
        say(kill_switch, "spec.killSwitch is true: out at once, and out it stays");
        let last = reclaim.filter(|last| last.stage() != Stage::Over);
        let disabled_for_it = last.is_some() && calls.disabled_for.as_ref() == last.map(|last| &last.id);
        if let Some(last) = last {
            say(true, &reclaim_in_words(last, &calls.resume_command));
        } else if let Some(request) = &calls.request {
            say(true, &format!("asked back by hand ({}): out at once, and held", why(&request.reason)));
        }
        say(!enabled && disabled_for_it, "spec.schedule.enabled was set to false for that reclaim");
        say(!enabled && !disabled_for_it, "spec.schedule.enabled is false: out gracefully, and out it stays");
        say(paused, "paused by annotation: nothing is created or deleted");
        all
    }

    fn cluster(&self) -> String {
        let name = &self.watched.machine.spec.cluster_name;
        if let Served::No(what) = &self.observed.cluster_api {
            return format!("{name}: {what} are not served here; is Cluster API installed?");
        }
        match self.observed.cluster {
            Cluster::Absent(_) => format!("{name}: not found"),
            Cluster::Present { deleting: true, .. } => format!("{name}: is being deleted"),
            Cluster::Present { paused: true, .. } => format!("{name}: is paused"),
            Cluster::Present { .. } => format!("{name}: is there"),
        }
    }

    fn node(&self) -> Vec<String> {
        match &self.observed.workload {
            Workload::Unreachable(why) => {
                vec![format!("not known, the workload cluster cannot be reached: {}", why.message)]
            }
            Workload::NotAsked | Workload::Reachable(_, None) => {
                vec![without_node(&self.observed.machine).to_owned()]
            }
            Workload::Reachable(access, Some(node)) => self.of_node(*access, node),
        }
    }

    fn of_node(&self, access: Access, node: &Node) -> Vec<String> {
        let ready = match node.ready.status {
            Some(true) => "Ready".to_owned(),
            Some(false) | None => format!("not Ready ({})", node.ready.reason),
        };
        let cordon = match (node.unschedulable, node.cordoned_by_us) {
            (true, true) => ", cordoned by 5-Spot",
            (true, false) => ", cordoned by somebody else",
            (false, _) => "",
        };
        let through = match access {
            Access::Secret => "through its kubeconfig Secret",
            Access::Management => "in the management cluster",
        };
        let mut all = vec![format!("{}: {ready}{cordon}; seen {through}", node.name)];
        if let Some(request) = &node.request {
            all.push(format!("asks for the machine: {}", why(&request.reason)));
        }
        let commands = &self.orders.reclaim.commands;
        let machine = self.observed.machine.ours().map(|machine| &machine.object.uid);
        if machine.is_some() && node.armed_for.as_ref() == machine {
            all.push(format!("its reclaim agent is to look for {}", commands.join(", ")));
        }
        if let (Pods::Listed(pods), Some(shutdown)) = (&node.pods, &self.observed.memory.shutdown) {
            let setting = Setting {
                now: self.now,
                started_at: shutdown.started_at,
                is_silent: node.is_silent(),
                forced: shutdown.cause.is_emergency(),
            };
            let left = Drain::plan(pods, setting).summary();
            let left = if left.is_empty() { "nothing is left that must go".to_owned() } else { left };
            all.push(format!("{} pods; {left}", pods.len()));
        }
        all
    }
}

/// What a reclaim under way, or the hold it left, means for the machine.
fn reclaim_in_words(reclaim: &Reclaim, resume: &str) -> String {
    let (id, why) = (&reclaim.id, why(&reclaim.reason));
    match reclaim.stage() {
        Stage::UnderWay => format!("reclaim {id} ({why}) is under way: it finishes, whatever else is asked"),
        Stage::Held | Stage::Over => format!(
            "held by reclaim {id} ({why}): nothing is created, whatever spec.schedule.enabled says, until: {resume}"
        ),
    }
}

fn condition(report: &Report, kind: ConditionKind) -> Option<String> {
    let condition = report.conditions.iter().find(|condition| condition.kind == kind)?;
    Some(format!("{}: {}", condition.reason, condition.message))
}

/// The same, for a condition whose message may be the message of the whole: that is not repeated.
fn unless_said(report: &Report, kind: ConditionKind) -> Option<String> {
    let found = report.conditions.iter().find(|condition| condition.kind == kind)?;
    if report.message.starts_with(&found.message) {
        return Some(format!("{}, as said above", found.reason));
    }
    condition(report, kind)
}

/// In place of a Node: there is no Machine that would have one, the Machine has not joined, or its Node is gone.
fn without_node(machine: &Presence<Machine>) -> &'static str {
    match machine {
        Presence::Ours(machine) if machine.node_name.is_some() => "not registered",
        Presence::Ours(_) => "none yet",
        Presence::Unknown(_) => "not known",
        Presence::Absent(_) | Presence::Foreign(_) | Presence::NotServed(_) => "none",
    }
}

fn of_object(object: &Object, now: Timestamp) -> String {
    let age = |from: Timestamp| span(now.as_second() - from.as_second());
    match object.deleting_since {
        Some(since) => format!("is being deleted, for {}", age(since)),
        None => format!("is there, for {}", age(object.created_at)),
    }
}

fn of_part(part: &Presence<Object>, now: Timestamp) -> String {
    match part {
        Presence::Absent(_) => "none".to_owned(),
        Presence::Foreign(foreign) => format!("{} is not ours", foreign.what),
        Presence::NotServed(what) => format!("{what} is not served here"),
        Presence::Unknown(unknown) => format!("not known: {}", unknown.why),
        Presence::Ours(object) => of_object(object, now),
    }
}

fn of_machine(machine: &Presence<Machine>, now: Timestamp) -> String {
    let Presence::Ours(machine) = machine else {
        return match machine {
            Presence::Foreign(foreign) => format!("{} is not ours", foreign.what),
            Presence::NotServed(what) => format!("{what} are not served here"),
            Presence::Unknown(unknown) => format!("not known: {}", unknown.why),
            Presence::Absent(_) | Presence::Ours(_) => "none".to_owned(),
        };
    };
    let ready = match machine.ready.status {
        Some(true) => "Ready",
        Some(false) => "not Ready",
        None => "not reported on",
    };
    let hooks = if machine.hooks.is_empty() {
        String::new()
    } else {
        format!("; held by {}", machine.hooks.join(", "))
    };
    format!("{}; {ready}{hooks}", of_object(&machine.object, now))
}
