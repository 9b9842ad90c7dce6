//! The controller, as the real one works: look until enough is known, act in order, then write status.

use crate::actors::{Actor, Event};
use crate::rules;
use crate::world::{Refused, World};
use fivespot_core::drain::Attempts;
use fivespot_core::lifecycle::{Action, Decision, decide};
use fivespot_core::observed::{Needs, Observed};
use fivespot_core::status::report;
use jiff::{SignedDuration, Timestamp};

/// Passes after which a world in which nobody else acts must be quiet.
const QUIET_AFTER: usize = 8;

/// Rounds of passes and actors after which all must be settled.
const ROUNDS: usize = 2000;

/// How long a world is watched until it counts as settled: longer than a drain and the patience of a deletion.
const WATCHED: SignedDuration = SignedDuration::from_mins(25);

/// The shortest wait when nothing changes, to look less often than a real controller does.
const IDLE: SignedDuration = SignedDuration::from_secs(10);

/// A controller.
#[derive(Debug, Clone, Default)]
pub struct Controller {
    /// Writes that it made.
    pub writes: usize,
    /// It dies when it has made so many.
    pub dies_after: Option<usize>,
    /// Rules that it broke, with the time and the action.
    pub broken: Vec<String>,
    /// Whether the last pass was refused something: then the next one looks closely at once.
    pub refused: bool,
    /// Whether the last pass met a webhook that is down: then it is tried again later.
    pub met_breakdown: bool,
    /// The world at the start of the last pass.
    pub before: Option<World>,
}

/// What is seen once enough is known, and what follows.
pub fn look(world: &World) -> (Observed, Decision) {
    look_from(world, Needs::default())
}

/// The same, if so much is asked for at once.
pub fn look_from(world: &World, mut known: Needs) -> (Observed, Decision) {
    loop {
        let observed = world.observe(known);
        let decision = decide(world.now, &world.orders, world.wish.as_ref().as_ref(), &observed);
        if decision.needs.within(known) {
            return (observed, decision);
        }
        known = known.and(decision.needs);
    }
}

impl Controller {
    /// One pass; `None` if there is nothing to look after any more. Tells what was decided.
    pub fn pass(&mut self, world: &mut World) -> Option<Decision> {
        if !world.exists {
            return None;
        }
        let leaves = rules::may_leave(world);
        if leaves {
            world.leaves_since.get_or_insert(world.now);
        }
        self.before = Some(world.clone());
        self.met_breakdown = false;
        let needs = if std::mem::take(&mut self.refused) { Needs::OBJECTS } else { Needs::default() };
        let (observed, decision) = look_from(world, needs);
        let mut attempts = Attempts::default();
        let mut shown = decision.clone();
        for action in &decision.actions {
            if self.dies() {
                return Some(decision);
            }
            if let Some(broken) = rules::judge(world, action) {
                self.broken.push(format!("{}: {action:?}: {broken}", world.now));
            }
            match world.perform(action) {
                Ok(_) if matches!(action, Action::Try(_)) => shown = shown.tried("spec", Ok(()), world.now),
                Ok(more) => attempts.0.extend(more.0),
                Err(Refused::Refused(why)) if matches!(action, Action::Disable { .. }) => {
                    shown = shown.not_disabled(why);
                }
                Err(Refused::Broken) => {
                    self.met_breakdown = true;
                    if !decision.goes_on_without(action) {
                        return Some(decision);
                    }
                }
                Err(Refused::Refused(_)) => {
                    self.refused = true;
                    return Some(decision);
                }
            }
        }
        if self.dies() || !world.exists {
            return Some(decision);
        }
        if !leaves {
            world.leaves_since = None;
        }
        let before = world.clone();
        world.remember(&report(&shown.after(&attempts, &observed), &observed));
        if let Some(broken) = rules::judge_memory(&before, &world.memory) {
            self.broken.push(format!("{}: status: {broken}", world.now));
        }
        Some(decision)
    }

    /// A pass that sees the ScheduledMachine as it was at the start of the last one, and all else as it is. It breaks
    /// rules, since it does not know of the orders; what it does must be made good. Status is written only over the
    /// status that was read.
    fn stale_pass(&mut self, world: &mut World) -> Option<Decision> {
        let old = self.before.clone().filter(|_| world.exists)?;
        let World { orders, wish, finalizer, memory, .. } = old;
        let is_current = memory == world.memory
            && orders == world.orders
            && finalizer == world.finalizer
            && wish == world.wish;
        if is_current {
            return self.pass(world);
        }
        let seen = World { orders, wish, finalizer, memory, ..world.clone() };
        let (_, decision) = look(&seen);
        for action in &decision.actions {
            // Whoever writes to the object names the version that he read.
            let of_object = matches!(
                action,
                Action::AddFinalizer
                    | Action::RemoveFinalizer
                    | Action::Disable { .. }
                    | Action::ClearOwnRequest
                    | Action::RememberHost(_)
            );
            if of_object || world.perform(action).is_err() {
                break;
            }
        }
        Some(decision)
    }

    /// Whether it dies before its next write.
    fn dies(&mut self) -> bool {
        if self.dies_after == Some(self.writes) {
            self.dies_after = None;
            return true;
        }
        self.writes += 1;
        false
    }

    /// Passes until nothing changes, while nobody else acts and no time goes by.
    pub fn rest(&mut self, world: &mut World) -> Result<Option<Decision>, String> {
        let mut actions = Vec::new();
        for _ in 0..QUIET_AFTER {
            let (before, mortal) = (world.clone(), self.dies_after.is_some());
            let decision = self.pass(world);
            let died = mortal && self.dies_after.is_none();
            if before == *world && !died && !self.refused {
                let again = |action: &Action| matches!(action, Action::Evict(_) | Action::ForceDelete(_));
                return match decision {
                    Some(it) if !it.actions.iter().all(again) && !self.met_breakdown => {
                        Err(format!("{}: acts for ever without effect: {:?}", world.now, it.actions))
                    }
                    other => Ok(other),
                };
            }
            actions.extend(decision.map(|it| it.actions));
        }
        Err(format!("{}: not at rest after {QUIET_AFTER} passes: {actions:?}", world.now))
    }

    /// Lets everybody do what is his to do, and time go by, until nothing changes.
    pub fn settle(&mut self, world: &mut World) -> Result<(), String> {
        self.settle_and(world, |_, _| Ok(()))
    }

    /// The same, with a look at every world in which the controller rests.
    pub fn settle_and(
        &mut self,
        world: &mut World,
        mut at_rest: impl FnMut(&World, &Decision) -> Result<(), String>,
    ) -> Result<(), String> {
        let end = world.now.saturating_add(WATCHED).unwrap_or(Timestamp::MAX);
        for _ in 0..ROUNDS {
            let decision = self.rest(world)?;
            if let Some(decision) = &decision {
                at_rest(world, decision)?;
            }
            let before = world.clone();
            for actor in Actor::ALL {
                world.act(actor);
            }
            if before != *world {
                continue;
            }
            let wake = decision.map(|it| it.wake).unwrap_or_default();
            let poll = wake.poll.and_then(|_| world.now.checked_add(IDLE).ok());
            let next = [wake.at, poll, world.next_timer()].into_iter().flatten().min();
            match next.filter(|next| *next <= end) {
                Some(next) => world.now = next,
                None => return Ok(()),
            }
        }
        Err(format!("{}: not settled after {ROUNDS} rounds", world.now))
    }

    /// Something happens; if it is a pass, its decision is told.
    pub fn live(&mut self, world: &mut World, event: Event) -> Option<Decision> {
        match event {
            Event::Pass => self.pass(world),
            Event::Stale => self.stale_pass(world),
            Event::Crash(after) => {
                self.dies_after = Some(self.writes + usize::from(after));
                let decision = self.pass(world);
                self.dies_after = None;
                decision
            }
            Event::Act(_) | Event::User(_) | Event::Fault(_) | Event::Seconds(_) | Event::Boundary => {
                world.happen(event);
                None
            }
        }
    }
}
