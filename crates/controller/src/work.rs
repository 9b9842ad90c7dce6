//! One pass over one ScheduledMachine: observe, decide, perform.

use crate::metrics::{ByError, ByResult, Metrics, PassResult};
use crate::options::Options;
use crate::queue::{Failures, Next, Outcome};
use crate::share::Share;
use fivespot_api::ScheduledMachine;
use fivespot_cluster::{Error, Key, Retry, Shell, Watched};
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Action, Decision, News, Part, Patience, Phase, Scheduled, Wake, decide};
use fivespot_core::observed::{Needs, Observed};
use fivespot_core::status::report;
use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Passes in a row that something broken made fail after which people are told by an event.
const TELL_AFTER: u32 = 1;

/// Passes in a row between whose look and write the world had moved on after which it is called a failure: something
/// else is wrong then.
const STUBBORN: u32 = 6;

/// How soon it is looked again whether the event of a write of ours has come.
const OWN_WRITE: Duration = Duration::from_millis(50);

/// The longest sleep without another look at the clock: timers follow neither steps of the clock nor a suspended host.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Everything a pass needs.
pub(crate) struct Worker {
    pub(crate) shell: Arc<Shell>,
    pub(crate) share: Arc<Share>,
    pub(crate) metrics: Metrics,
    patience: Patience,
    gitops_managers: Vec<String>,
    dry_run: bool,
    /// What a dry run said last: it leaves no trace in status by which it would know.
    said: Mutex<HashMap<Key, String>>,
}

/// What is known of a pass however it ends.
#[derive(Default)]
struct Trace {
    next: Next,
    /// Whether it came to its actions.
    performs: bool,
    /// Whether somebody waits for his machine.
    is_urgent: bool,
}

impl Worker {
    pub(crate) fn new(
        shell: Arc<Shell>,
        share: Arc<Share>,
        metrics: Metrics,
        patience: Patience,
        options: &Options,
    ) -> Self {
        let (gitops_managers, dry_run) = (options.gitops_managers.clone(), options.dry_run);
        Self { shell, share, metrics, patience, gitops_managers, dry_run, said: Mutex::default() }
    }

    /// One pass. `failures` is how many passes before it failed in a row.
    pub(crate) async fn pass(&self, key: &Key, failures: Failures) -> Outcome {
        let began = Instant::now();
        let Some(watched) = self.shell.get(key) else {
            self.said.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            return Outcome::Gone;
        };
        if !self.share.has(key) {
            return Outcome::Gone;
        }
        if self.shell.is_behind(&watched) {
            return Outcome::Behind(began + OWN_WRITE);
        }
        let mut trace = Trace::default();
        let outcome = self.reconcile(&watched, failures, &mut trace).await;
        self.metrics.duration.observe(began.elapsed().as_secs_f64());
        let result = match &outcome {
            Ok(result) => *result,
            Err(_) => PassResult::error,
        };
        self.metrics.passes.get_or_create(&ByResult { result }).inc();
        let Err(error) = outcome else { return Outcome::Done(trace.next) };
        self.metrics.errors.get_or_create(&ByError { error_type: error.word() }).inc();
        if !self.share.has(key) {
            // Whoever looks after it now begins with a look of his own.
            tracing::debug!(object = %key, %error, "the machine went to another instance");
            return Outcome::Gone;
        }
        let retry = match error.retry() {
            Retry::Soon if failures.soon >= STUBBORN => Retry::Later,
            retry => retry,
        };
        match retry {
            Retry::Soon => tracing::debug!(object = %key, %error, "the world has moved on"),
            Retry::Later | Retry::Refused => {
                tracing::warn!(object = %key, %error, "a pass failed");
                if !self.dry_run && failures.later == TELL_AFTER {
                    self.shell.tell_failure(&watched, &error).await;
                }
                // What an action ran into is in status already, unless it was taken for a race.
                let is_shown = trace.performs && error.retry() != Retry::Soon;
                if !self.dry_run && !is_shown {
                    self.shell.show_failure(&watched, &error).await;
                }
            }
        }
        if trace.is_urgent { Outcome::FailedUrgently(retry) } else { Outcome::Failed(retry, trace.next.at) }
    }

    /// How important a machine is among those that are due at the same moment.
    pub(crate) fn priority(&self, key: &Key) -> i64 {
        self.shell.get(key).map_or(0, |watched| watched.machine.spec.priority)
    }

    async fn reconcile(
        &self,
        watched: &Watched,
        failures: Failures,
        trace: &mut Trace,
    ) -> Result<PassResult, Error> {
        // Both clocks at the same moment: what is decided on the one is awaited on the other.
        let (now, running) = (Timestamp::now(), Instant::now());
        let orders = watched.orders(self.patience, &self.gitops_managers);
        let wish = Intent::try_from(&watched.machine);
        // Whatever fails, the window ends when it ends.
        let until = wish.as_ref().ok().and_then(|intent| intent.schedule.at(now).until);
        trace.next = wake(Wake { at: until, poll: None }, now, running);
        trace.is_urgent = watched.machine.memory().phase == Some(Phase::EmergencyRemove);
        // What a watch says was not enough last time.
        let mut needs = if failures.any() { Needs::OBJECTS } else { Needs::default() };
        let (now, running, observed, decision) = loop {
            let observed = self.shell.observe(watched, needs).await?;
            // A look may take seconds: what follows from it is decided for the time after it.
            let (now, running) = (Timestamp::now(), Instant::now());
            let decision = decide(now, &orders, wish.as_ref(), &observed);
            if decision.needs.within(needs) {
                break (now, running, observed, decision);
            }
            needs = needs.and(decision.needs);
        };
        trace.next = wake(decision.wake, now, running);
        trace.is_urgent |= decision.phase == Phase::EmergencyRemove;
        let news = is_news(&watched.machine, &observed, &decision) && self.is_said_first(watched, &decision);
        // What comes of evictions is known afterwards, and only a change of it is told.
        let is_drain = is_drain(&decision);
        if news && !is_drain {
            log(watched, &observed, &decision);
        }
        if self.dry_run {
            return Ok(if news { PassResult::acted } else { PassResult::unchanged });
        }
        trace.performs = true;
        let performed = self.shell.perform(watched, wish.as_ref().ok(), &observed, decision, now).await?;
        let said = watched.machine.status.as_ref().and_then(|status| status.message.clone());
        if is_drain && said.unwrap_or_default() != report(&performed.decision, &observed).message {
            log(watched, &observed, &performed.decision);
        }
        self.count(watched, &observed, &performed.decision, now);
        let acted = performed.wrote_status? || !performed.decision.actions.is_empty();
        Ok(if acted { PassResult::acted } else { PassResult::unchanged })
    }

    /// Whether a dry run has not said the same of this machine before.
    fn is_said_first(&self, watched: &Watched, decision: &Decision) -> bool {
        if !self.dry_run {
            return true;
        }
        let actions: Vec<String> = decision.actions.iter().map(ToString::to_string).collect();
        let text = format!("{:?} {:?} {actions:?}", decision.phase, decision.waiting);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.insert(watched.key(), text.clone()) != Some(text)
    }

    fn count(&self, watched: &Watched, observed: &Observed, decision: &Decision, now: Timestamp) {
        let since = |from: Timestamp| now.duration_since(from).as_secs_f64().max(0.0);
        let status = watched.machine.status.as_ref();
        let boundary = status.and_then(|status| status.next_transition.as_ref()).map(|time| time.0);
        let by_the_clock = [Scheduled::InWindow, Scheduled::OutsideWindow];
        let moved = |word: &str| by_the_clock.iter().any(|it| it.word() == word && *it != decision.scheduled);
        let moved = by_the_clock.contains(&decision.scheduled)
            && observed.memory.scheduled.as_deref().is_some_and(moved);
        if let Some(boundary) = boundary.filter(|boundary| moved && *boundary <= now) {
            self.metrics.lateness.observe(since(boundary));
        }
        let deletes = |action: &Action| matches!(action, Action::Delete { part: Part::Machine, .. });
        if let Some(shutdown) = decision.shutdown.as_ref().filter(|_| decision.actions.iter().any(deletes)) {
            let histogram = match decision.phase {
                Phase::EmergencyRemove => &self.metrics.ejects,
                _ => &self.metrics.drains,
            };
            histogram.observe(since(shutdown.started_at));
        }
        if decision.notes.iter().any(|note| note.news == News::FinalizerCleanupTimedOut) {
            self.metrics.finalizers_forced.inc();
        }
    }
}

/// When to look again, on a clock that does not jump.
fn wake(wake: Wake, now: Timestamp, running: Instant) -> Next {
    let at = wake.at.map(|at| at.duration_since(now));
    let at = at.map(|wait| Duration::try_from(wait).unwrap_or_default());
    let wait = [at.map(|wait| wait.min(LONGEST_SLEEP)), wake.poll].into_iter().flatten().min();
    Next { at: wait.map(|wait| running + wait), waits: wake.poll.is_some() }
}

/// Whether a decision says anything that the last one did not.
fn is_news(machine: &ScheduledMachine, observed: &Observed, decision: &Decision) -> bool {
    let message = machine.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
    !decision.actions.is_empty()
        || observed.memory.phase != Some(decision.phase)
        || observed.memory.shutdown != decision.shutdown
        || message != report(decision, observed).message
}

/// Whether a decision does nothing but ask pods to end, as the one before it did.
fn is_drain(decision: &Decision) -> bool {
    let asks = |action: &Action| matches!(action, Action::Evict(_) | Action::ForceDelete(_));
    !decision.actions.is_empty() && decision.actions.iter().all(asks)
}

fn log(watched: &Watched, observed: &Observed, decision: &Decision) {
    let actions: Vec<String> = decision.actions.iter().map(ToString::to_string).collect();
    let message = report(decision, observed).message;
    macro_rules! say {
        ($level:ident) => {
            tracing::$level!(
                object = %watched.key(),
                from = observed.memory.phase.map_or("-", Phase::word),
                phase = decision.phase.word(),
                scheduled = decision.scheduled.word(),
                actions = actions.join(", "),
                wake = decision.wake.at.map(tracing::field::display),
                "{message}",
            )
        };
    }
    if decision.phase == Phase::Error { say!(warn) } else { say!(info) }
}
