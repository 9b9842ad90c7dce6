//! Which pods of a Node are asked to go next, and what is said about those that stay.
//!
//! Which must go is `fivespot_core::drain`'s to say, for the controller and for us. What is decided here is the order: a
//! reclaim has minutes, so that what is less important goes first and our own process last.

use fivespot_cluster::fleet::Guest;
use fivespot_core::drain::{Attempts, Bucket, Drain, Pod, PodId, Setting};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Priority from which on a pod belongs to the system, as Kubernetes has it.
const SYSTEM: i32 = 2_000_000_000;

/// A drain that has no more time than this asks all pods at once.
const SHORT: SignedDuration = SignedDuration::from_secs(30);

/// A pod that should have ended this long ago on a Node whose kubelet answers is held by something.
const OVERDUE: SignedDuration = SignedDuration::from_secs(10);

/// Characters of a text on an object: an event has room for 1024, and people read less.
const TEXT: usize = 900;

/// Pods that a text names for each reason.
const NAMED: usize = 3;

/// When a drain began and when it must have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Now.
    pub now: Timestamp,
    /// When the reclaim was accepted.
    pub accepted_at: Timestamp,
    /// When the drain must have ended.
    pub deadline: Timestamp,
}

/// What is known of a Node beside its pods.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Whether its kubelet answers.
    pub is_ready: bool,
    /// DaemonSets that are gone, as namespace and name: nobody puts their pods back.
    pub gone: &'a BTreeSet<(String, String)>,
    /// Our own pod, as namespace and name.
    pub own: Option<(&'a str, &'a str)>,
}

/// One look at a Node.
#[derive(Debug, Clone)]
pub struct Look {
    drain: Drain,
    guests: BTreeMap<PodId, Guest>,
    is_own: Option<PodId>,
    times: Times,
}

impl Look {
    /// Sorts the pods of a Node. What its owner wants left alone is not looked at.
    pub fn new(guests: Vec<Guest>, place: Place<'_>, times: Times) -> Self {
        let orphan = |guest: &Guest| {
            let name = guest.daemon_set.clone();
            name.is_some_and(|name| place.gone.contains(&(guest.pod.id.namespace.clone(), name)))
        };
        let guests: Vec<Guest> = guests.into_iter().filter(|guest| !guest.is_left_alone).collect();
        let pods: Vec<Pod> = guests
            .iter()
            .map(|guest| Pod {
                of_daemon_set: guest.pod.of_daemon_set && !orphan(guest),
                ..guest.pod.clone()
            })
            .collect();
        let setting = Setting {
            now: times.now,
            started_at: times.accepted_at,
            node_ready: place.is_ready,
            forced: false,
        };
        let own = place.own.and_then(|(namespace, name)| {
            pods.iter().map(|pod| &pod.id).find(|id| id.namespace == namespace && id.name == name)
        });
        Self {
            drain: Drain::plan(&pods, setting),
            is_own: own.cloned(),
            guests: guests.into_iter().map(|guest| (guest.pod.id.clone(), guest)).collect(),
            times,
        }
    }

    /// Whether nothing is left that must go.
    pub fn is_complete(&self) -> bool {
        self.drain.is_complete()
    }

    /// Whether a pod is still to be asked.
    pub fn is_asking(&self) -> bool {
        self.drain.of(Bucket::Running).next().is_some()
    }

    /// How many must still go.
    pub fn left(&self) -> usize {
        self.drain.of(Bucket::Running).count() + self.drain.of(Bucket::Ending).count()
    }

    /// Pods that nobody makes again, or that lose what they have written, and go all the same: the machine goes too.
    pub fn losses(&self) -> Vec<&PodId> {
        let lossy = |id: &&PodId| self.guests.get(*id).is_some_and(|guest| guest.is_lossy);
        self.drain.of(Bucket::Running).filter(lossy).collect()
    }

    /// The pods to ask now: the wave whose turn it is. A wave waits until those before it are gone, but for no more than
    /// half of the time; what a budget holds must not keep others from even being asked.
    pub fn to_ask(&self) -> Vec<PodId> {
        let Times { now, accepted_at, deadline } = self.times;
        let (whole, left) = (deadline.duration_since(accepted_at), deadline.duration_since(now));
        let all = self.drain.to_evict();
        if whole <= SHORT || left * 2 <= whole {
            return all;
        }
        let waiting = self.drain.of(Bucket::Running).chain(self.drain.of(Bucket::Ending));
        let Some(turn) = waiting.map(|id| self.wave(id)).min() else { return all };
        all.into_iter().filter(|id| self.wave(id) <= turn).collect()
    }

    fn wave(&self, id: &PodId) -> u8 {
        if self.is_own.as_ref() == Some(id) {
            return 3;
        }
        match self.guests.get(id).map_or(0, |guest| guest.priority) {
            i32::MIN..0 => 0,
            0..SYSTEM => 1,
            SYSTEM.. => 2,
        }
    }

    /// What is left and what is in its way, in words; empty if nothing is.
    pub fn summary(&self, attempts: &Attempts) -> String {
        let parts = [self.drain.summary(), attempts.summary(), self.overdue()];
        let text = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        cut(text)
    }

    /// The last words of a drain that did not end in time.
    pub fn failure(&self, attempts: &Attempts) -> String {
        let seconds = self.times.deadline.duration_since(self.times.accepted_at).as_secs();
        cut(format!("not drained within {seconds} s: {}", self.summary(attempts)))
    }

    /// Pods that should have ended, and what holds them.
    fn overdue(&self) -> String {
        let is_late = |id: &&PodId| {
            let end = self.guests.get(*id).and_then(|guest| guest.pod.deletion);
            end.is_some_and(|end| self.times.now.duration_since(end) > OVERDUE)
        };
        let late: Vec<&PodId> = self.drain.of(Bucket::Ending).filter(is_late).collect();
        let held = |id: &&PodId| self.guests.get(*id).is_some_and(|guest| guest.has_finalizer);
        let (held, slow): (Vec<_>, Vec<_>) = late.into_iter().partition(held);
        let words = [(held, "held by a finalizer"), (slow, "overdue: the kubelet does not end it")];
        let part = |(pods, why): (Vec<&PodId>, &str)| {
            let names: Vec<String> = pods.iter().take(NAMED).map(ToString::to_string).collect();
            (!names.is_empty()).then(|| format!("{} {why}: {}", pods.len(), names.join(", ")))
        };
        words.into_iter().filter_map(part).collect::<Vec<_>>().join("; ")
    }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use fivespot_core::drain::{Attempt, Outcome};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn guest(name: &str, priority: i32) -> Guest {
        let id = PodId { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") };
        let pod = Pod { id, created_at: at(-100), deletion: None, of_daemon_set: false, mirror: false };
        Guest { pod, priority, daemon_set: None, is_lossy: false, has_finalizer: false, is_left_alone: false }
    }

    fn ending(name: &str, end: i64) -> Guest {
        let mut guest = guest(name, 0);
        guest.pod.deletion = Some(at(end));
        guest
    }

    fn look(guests: Vec<Guest>, now: i64, grace: i64) -> Look {
        let place = Place { is_ready: true, gone: &BTreeSet::new(), own: Some(("default", "operator")) };
        Look::new(guests, place, Times { now: at(now), accepted_at: at(0), deadline: at(grace) })
    }

    fn names(pods: Vec<PodId>) -> Vec<String> {
        pods.into_iter().map(|id| id.name).collect()
    }

    fn everybody() -> Vec<Guest> {
        vec![guest("batch", -5), guest("web", 0), guest("proxy", SYSTEM), guest("operator", 0)]
    }

    #[test]
    fn waves_go_one_after_the_other_and_we_go_last() {
        let mut guests = everybody();
        for expected in ["batch", "web", "proxy", "operator"] {
            assert_eq!(names(look(guests.clone(), 1, 600).to_ask()), [expected]);
            let gone = guests.remove(0);
            let mut still_there = guests.clone();
            still_there.push(ending(&gone.pod.id.name, 100));
            let wave = look(still_there, 1, 600).to_ask();
            assert!(
                expected != "batch" || names(wave) == ["web"],
                "an ending pod of wave 1 lets wave 1 go on"
            );
        }
    }

    #[test]
    fn who_has_little_time_asks_all_at_once() {
        let all = ["batch", "operator", "proxy", "web"];
        assert_eq!(names(look(everybody(), 1, 30).to_ask()), all, "a short grace");
        assert_eq!(names(look(everybody(), 300, 600).to_ask()), all, "half of a long one is over");
    }

    #[test]
    fn a_daemon_set_that_is_gone_does_not_protect_its_pods() {
        let mut daemon = guest("logs-x", 0);
        daemon.pod.of_daemon_set = true;
        daemon.daemon_set = Some("logs".into());
        assert!(look(vec![daemon.clone()], 1, 600).is_complete());
        let gone = BTreeSet::from([("default".to_owned(), "logs".to_owned())]);
        let place = Place { is_ready: true, gone: &gone, own: None };
        let times = Times { now: at(1), accepted_at: at(0), deadline: at(600) };
        assert_eq!(names(Look::new(vec![daemon], place, times).to_ask()), ["logs-x"]);
    }

    #[test]
    fn a_pod_that_wants_to_be_left_alone_is() {
        let alone = Guest { is_left_alone: true, ..guest("pinned", 0) };
        assert!(look(vec![alone], 1, 600).is_complete());
    }

    #[test]
    fn the_last_words_name_counts_pods_and_budgets() {
        let blocked = |name: &str| Attempt {
            pod: guest(name, 0).pod.id,
            outcome: Outcome::Blocked(
                "The disruption budget web-pdb needs 2 healthy pods and has 2 currently".into(),
            ),
        };
        let guests = vec![
            guest("web-0", 0),
            guest("web-1", 0),
            Guest { has_finalizer: true, ..ending("stuck", -20) },
            ending("slow", -30),
            ending("fine", 9),
        ];
        let look = look(guests, 10, 10);
        expect![[r#"not drained within 10 s: 2 pods to evict: default/web-0, default/web-1; 3 pods ending: default/fine, default/slow, default/stuck; default/web-0 is held by its disruption budget: The disruption budget web-pdb needs 2 healthy pods and has 2 currently; default/web-1 is held by its disruption budget: The disruption budget web-pdb needs 2 healthy pods and has 2 currently; 1 held by a finalizer: default/stuck; 1 overdue: the kubelet does not end it: default/slow"#]]
        .assert_eq(&look.failure(&Attempts(vec![blocked("web-0"), blocked("web-1")])));
        assert_eq!(look.left(), 5);
    }

    #[test]
    fn a_text_has_an_end() {
        let long = "ä".repeat(5000);
        assert_eq!(cut(long).chars().count(), TEXT + 3);
    }
}
