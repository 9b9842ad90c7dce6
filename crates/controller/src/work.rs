//! One pass over one ScheduledMachine: observe, decide, perform.

use crate::metrics::{ByError, ByResult, Metrics, PassResult};
use crate::queue::Outcome;
use fivespot_api::ScheduledMachine;
use fivespot_cluster::{Error, Key, Retry, Shell, Watched};
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Action, Decision, News, Part, Patience, Phase, Scheduled, Wake, decide};
use fivespot_core::observed::{Needs, Observed};
use fivespot_core::status::report;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Failures in a row after which people are told.
const TELL_AFTER: u32 = 1;

/// How soon it is looked again whether the event of a write of ours has come.
const OWN_WRITE: Duration = Duration::from_millis(50);

/// The longest sleep without another look at the clock: timers follow neither steps of the clock nor a suspended host.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Everything a pass needs.
pub(crate) struct Worker {
    pub(crate) shell: Arc<Shell>,
    pub(crate) metrics: Metrics,
    pub(crate) patience: Patience,
    pub(crate) dry_run: bool,
}

impl Worker {
    /// One pass. `failures` is how many passes before it failed in a row.
    pub(crate) async fn pass(&self, key: &Key, failures: u32) -> Outcome {
        let began = Instant::now();
        let Some(watched) = self.shell.get(key) else { return Outcome::Gone };
        if self.shell.is_behind(&watched) {
            return Outcome::Behind(began + OWN_WRITE);
        }
        let outcome = self.reconcile(&watched, failures).await;
        self.metrics.duration.observe(began.elapsed().as_secs_f64());
        let result = match &outcome {
            Ok((PassResult::acted, _)) => PassResult::acted,
            Ok(_) => PassResult::unchanged,
            Err(_) => PassResult::error,
        };
        self.metrics.passes.get_or_create(&ByResult { result }).inc();
        match outcome {
            Ok((_, wake)) => Outcome::Done(wake),
            Err(error) => {
                self.metrics.errors.get_or_create(&ByError { error_type: error.word() }).inc();
                let retry = error.retry();
                match retry {
                    Retry::Soon => tracing::debug!(object = %key, %error, "the world has moved on"),
                    Retry::Later | Retry::Refused => tracing::warn!(object = %key, %error, "a pass failed"),
                }
                if !self.dry_run && failures == TELL_AFTER && retry != Retry::Soon {
                    self.shell.tell_failure(&watched, &error, Timestamp::now()).await;
                }
                Outcome::Failed(retry)
            }
        }
    }

    /// How important a machine is among those that are due at the same moment.
    pub(crate) fn priority(&self, key: &Key) -> i64 {
        self.shell.get(key).map_or(0, |watched| watched.machine.spec.priority)
    }

    async fn reconcile(
        &self,
        watched: &Watched,
        failures: u32,
    ) -> Result<(PassResult, Option<Instant>), Error> {
        // Both clocks at the same moment: what is decided on the one is awaited on the other.
        let (now, running) = (Timestamp::now(), Instant::now());
        let orders = watched.machine.orders(self.patience);
        let wish = Intent::try_from(&watched.machine);
        // What a watch says was not enough last time.
        let mut needs = Needs { certainty: failures > 0, ..Needs::default() };
        let (observed, decision) = loop {
            let observed = self.shell.observe(watched, needs).await?;
            let decision = decide(now, &orders, wish.as_ref(), &observed);
            if decision.needs.within(needs) {
                break (observed, decision);
            }
            needs = needs.and(decision.needs);
        };
        let wake = wake(&decision.wake, now, running);
        let news = is_news(&watched.machine, &observed, &decision);
        if news {
            log(watched, &observed, &decision);
        }
        if self.dry_run {
            return Ok((if news { PassResult::acted } else { PassResult::unchanged }, wake));
        }
        let performed = self.shell.perform(watched, wish.as_ref().ok(), &observed, decision, now).await?;
        self.count(watched, &observed, &performed.decision, now);
        let acted = performed.wrote_status? || !performed.decision.actions.is_empty();
        Ok((if acted { PassResult::acted } else { PassResult::unchanged }, wake))
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
fn wake(wake: &Wake, now: Timestamp, running: Instant) -> Option<Instant> {
    let at = wake.at.map(|at| at.duration_since(now));
    let at = at.map(|wait| Duration::try_from(wait).unwrap_or_default());
    let wait = [at.map(|wait| wait.min(LONGEST_SLEEP)), wake.poll].into_iter().flatten().min();
    wait.map(|wait| running + wait)
}

/// Whether a decision says anything that the last one did not.
fn is_news(machine: &ScheduledMachine, observed: &Observed, decision: &Decision) -> bool {
    let message = machine.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
    !decision.actions.is_empty()
        || observed.memory.phase != Some(decision.phase)
        || observed.memory.shutdown != decision.shutdown
        || message != report(decision, observed).message
}

fn log(watched: &Watched, observed: &Observed, decision: &Decision) {
    let actions: Vec<String> = decision.actions.iter().map(ToString::to_string).collect();
    tracing::info!(
        object = %watched.key(),
        from = observed.memory.phase.map_or("-", Phase::word),
        phase = decision.phase.word(),
        scheduled = decision.scheduled.word(),
        actions = actions.join(", "),
        wake = decision.wake.at.map(tracing::field::display),
        "{}",
        report(decision, observed).message,
    );
}
