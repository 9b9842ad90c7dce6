//! What is done for a machine, one thing after the other: read, planned, written, tried again.

use super::drains::{Drain, Stage};
use super::{Operator, Timer};
use crate::fleet::machine::{
    After, Job, Obstacle, Plan, Queued, Reclaim, Situation, Work, failed, plan_end, plan_resumption,
};
use crate::fleet::{
    Action, Applies, Effect, Facts, Node, Position, Report, Write, WriteError, Written, is_name,
};
use std::time::Duration;

/// Machines whose states are written down at the same time: a session begins with the states of all of them, and each
/// request under way is a connection to the API server.
const AT_ONCE: usize = 32;

/// First and last wait before anything else is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// How often an object that others write to is read again at once.
const RACES: u32 = 5;

/// Timers follow neither a clock that is set nor a host that sleeps: a deadline is looked at again after this time.
const RECHECK: Duration = Duration::from_secs(30);

impl Operator {
    /// Adds something to what is to be done for a machine.
    pub(super) fn push(&mut self, machine: &str, job: Job) {
        self.machine(machine).queue.push_back(job.queued());
        self.advance(machine);
    }

    /// Does the next thing for a machine, if nothing is being done for it.
    pub(super) fn advance(&mut self, machine: &str) {
        loop {
            let Some(it) = self.machines.get_mut(machine) else { return };
            if it.work.is_some() || it.queue.is_empty() {
                return;
            }
            let is_limited = !it.has_urgent_job();
            if is_limited && self.limited >= AT_ONCE {
                if !self.waiting.iter().any(|name| name == machine) {
                    self.waiting.push_back(machine.to_owned());
                }
                return;
            }
            let Some(queued) = it.queue.pop_front() else { return };
            if let Some(effect) = self.begin(machine, &queued) {
                self.effects.push(effect);
                self.limited += usize::from(is_limited);
                let after = match self.effects.last() {
                    Some(Effect::Write { .. }) => Some(Vec::new()),
                    Some(_) | None => None,
                };
                self.machine(machine).work = Some(Work { queued, is_limited, after });
                return;
            }
        }
    }

    /// What is to be read or written first; nothing if there is nothing to be done.
    pub(super) fn begin(&mut self, machine: &str, queued: &Queued) -> Option<Effect> {
        let read = |node: Option<String>, upcoming: bool| {
            Some(Effect::Read { machine: machine.to_owned(), node, upcoming })
        };
        let find =
            |operator: &Self, entry: &str| operator.index.find(entry).map(|(node, _)| node.id.name.clone());
        match &queued.job {
            Job::Reclaim => {
                let node = self.begin_reclaim(machine)?;
                read(Some(node), false)
            }
            Job::Fail => {
                let it = self.machines.get(machine)?;
                let failure = it.failure.as_ref().filter(|_| is_name(machine))?;
                // It may be tried again after a newer instruction has done what this one could not.
                if it.said.applies(failure.came, self.position.session) != Applies::Yes {
                    return None;
                }
                let action = Action::PatchUpcoming(failed(&failure.text));
                Some(Effect::Write {
                    machine: machine.to_owned(),
                    writes: vec![Write { action, is_required: true }],
                })
            }
            Job::Update { .. } => read(find(self, machine), true),
            Job::Resume { node } => read(Some(node.clone()), is_name(machine)),
            Job::End(ended) => read(Some(ended.node.name.clone()), is_name(machine)),
            Job::FindNode => {
                let node = find(self, machine)?;
                let drains = self.machines.get(machine)?.said.is_draining_in(self.position.session);
                read(Some(node).filter(|_| drains), true)
            }
            Job::Forget => {
                if self.is_gone(machine) {
                    read(None, true)
                } else {
                    None
                }
            }
        }
    }

    /// What was read for a machine.
    pub(super) fn read(&mut self, machine: &str, facts: Result<Box<Facts>, String>) {
        let Some(queued) =
            self.machines.get(machine).and_then(|it| it.work.as_ref()).map(|work| work.queued.clone())
        else {
            return;
        };
        let plan = match facts {
            Ok(facts) => self.plan(machine, &queued, &facts),
            Err(text) => return self.failed(machine, WriteError { text, is_race: false }),
        };
        let Some(plan) = plan else { return self.finish(machine) };
        if let Some(node) = &plan.stops_drain_of {
            self.stop_drain(node);
        }
        if plan.writes.is_empty() {
            self.follow(machine, plan.after);
            return self.finish(machine);
        }
        if let Some(work) = &mut self.machine(machine).work {
            work.after = Some(plan.after);
        }
        self.effects.push(Effect::Write { machine: machine.to_owned(), writes: plan.writes });
    }

    pub(super) fn plan(&mut self, machine: &str, queued: &Queued, facts: &Facts) -> Option<Plan> {
        match &queued.job {
            Job::Reclaim => self.plan_requests(machine, facts.node.as_ref()),
            Job::Fail => None,
            Job::Update { number, update } => {
                Some(self.situation(machine, facts, *number).plan_update(update))
            }
            Job::Resume { .. } => Some(plan_resumption(machine, facts)),
            Job::End(ended) => Some(plan_end(machine, ended, facts)),
            Job::FindNode => {
                let id = self.index.find(machine)?.0.id.clone();
                let number = self.machines.get(machine)?.said.last();
                Some(self.situation(machine, facts, number).plan_found(&id))
            }
            Job::Forget => {
                let uid = facts.upcoming.as_ref().filter(|_| self.is_gone(machine))?.uid.clone();
                self.report(Report::Forgotten { machine: machine.to_owned() });
                let write = Write { action: Action::RemoveUpcoming { uid }, is_required: true };
                Some(Plan { writes: vec![write], ..Plan::default() })
            }
        }
    }

    pub(super) fn situation<'a>(&'a self, machine: &'a str, facts: &'a Facts, number: u64) -> Situation<'a> {
        let rule = self.index.find(machine).map(|(_, rule)| rule);
        // The Node may have become another machine's.
        let is_its = |node: &&Node| {
            let record = node.record.as_ref();
            record.is_none_or(|record| record.machine == machine || !self.is_machine(&record.machine))
        };
        let node = facts.node.as_ref().filter(is_its).zip(rule);
        let it = self.machines.get(machine);
        // A reclaim that was not asked for in this session is older than what the shard says now.
        let taken = it.and_then(|it| it.taken).filter(|taken| taken.session == self.position.session);
        let has_left = it.zip(taken).is_none_or(|(it, taken)| it.said.has_left_since(taken.count));
        Situation {
            now: self.now.time,
            machine,
            node,
            upcoming: facts.upcoming.as_ref(),
            reclaim: Reclaim {
                is_given_up: it.is_some_and(|it| it.failure.is_some()),
                is_asked_for: it.is_some_and(|it| !it.requests.is_empty()),
                may_be_reused: has_left,
            },
            observe_only: self.settings.observe_only,
            default_grace: self.settings.default_grace,
            position: Position { count: number, ..self.position },
        }
    }

    /// How the writes for a machine went.
    pub(super) fn written(&mut self, machine: &str, written: Written) {
        for why in written.missed {
            self.report(Report::NotTold { machine: machine.to_owned(), why });
        }
        match written.result {
            Ok(()) => {
                let work = self.machine(machine).work.as_mut();
                let after = work.and_then(|work| work.after.take()).unwrap_or_default();
                self.follow(machine, after);
                self.finish(machine);
            }
            Err(error) => self.failed(machine, error),
        }
    }

    /// What follows when writes are done.
    pub(super) fn follow(&mut self, machine: &str, after: Vec<After>) {
        for after in after {
            match after {
                After::CarriedOut(requests) => {
                    let it = self.machine(machine);
                    it.requests.retain(|request| {
                        !requests
                            .iter()
                            .any(|(id, entry)| request.instruction == *id && request.entry == *entry)
                    });
                    (it.failure, it.obstacle) = (None, Obstacle::default());
                    if !it.requests.is_empty() {
                        it.queue.push_back(Job::Reclaim.queued());
                    }
                    for (id, entry) in requests {
                        self.settle(&id, &entry, true);
                    }
                }
                After::Taken(position) => {
                    let it = self.machine(machine);
                    (it.taken, it.failure) = (Some(position), None);
                }
                After::Drain { node, record } => self.start_drain(node, record),
                After::KeepDraining { node, record } => {
                    if self.drains.get(&node.name).is_none_or(|drain| drain.node != node) {
                        self.start_drain(node, record);
                    }
                }
                After::DrainIsOver(node) => {
                    let is_over = |drain: &Drain| drain.node == node && drain.stage == Stage::Ended;
                    if self.drains.get(&node.name).is_some_and(is_over) {
                        self.drains.remove(&node.name);
                    }
                }
                After::Notify(notice) => self.effects.push(Effect::Notify(notice)),
                After::Report(report) => self.report(report),
            }
        }
    }

    /// Something could not be done.
    pub(super) fn failed(&mut self, machine: &str, error: WriteError) {
        let Some(work) = self.machine(machine).work.as_mut() else { return };
        let Queued { job, tries, races } = work.queued.clone();
        if error.is_race && races < RACES {
            let again = Queued { job, tries, races: races + 1 };
            self.machine(machine).queue.push_front(again);
            return self.finish(machine);
        }
        if matches!(job, Job::Reclaim) {
            self.retry_reclaim(machine, error.text);
            return self.finish(machine);
        }
        self.report(Report::NotDoneYet { machine: machine.to_owned(), why: error.text, tries });
        let again = Queued { job, tries: tries.saturating_add(1), races: 0 };
        self.later(machine, backoff(RETRY, tries), again);
        self.finish(machine);
    }

    /// Goes on with the next thing for a machine, and with machines that waited.
    pub(super) fn finish(&mut self, machine: &str) {
        if let Some(work) = self.machine(machine).work.take() {
            self.limited -= usize::from(work.is_limited);
        }
        self.advance(machine);
        while self.limited < AT_ONCE
            && let Some(next) = self.waiting.pop_front()
        {
            self.advance(&next);
        }
    }

    pub(super) fn later(&mut self, machine: &str, wait: Duration, queued: Queued) {
        let due = self.now.uptime + wait.min(RECHECK);
        self.machine(machine).later.push((due, queued));
        self.timers.insert((due, Timer::Machine(machine.to_owned())));
    }
}

/// A wait that doubles with each try.
pub(super) fn backoff((first, last): (Duration, Duration), tries: u32) -> Duration {
    first.saturating_mul(1 << tries.min(16)).min(last)
}
