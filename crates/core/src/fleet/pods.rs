//! Which pods of a Node are evicted next, and what is said about those that stay.
//!
//! Which must go is decided by [`crate::drain`], for the controller and for the fleet operator. What is decided here is the
//! order: a fleet drain has minutes, so that what is less important goes first and the operator's own pod last.

use crate::drain::{Attempts, Bucket, Drain, Pod, PodId, Setting, Way};
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
    /// When the Node was cordoned.
    pub cordoned_at: Timestamp,
    /// When the drain must have ended.
    pub deadline: Timestamp,
}

impl Times {
    /// Whether there is so little time, or so little left, that all pods are asked at once.
    pub fn is_short(self) -> bool {
        self.deadline.duration_since(self.now) <= SHORT
    }
}

/// What whoever runs the cluster may choose. What is chosen by nobody is what ADR-0009 of BigFleet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// What is done about pods that lose something.
    pub lossy_pods: LossyPods,
    /// Whether a pod has no more time to end than the drain has.
    pub cap_pod_grace: bool,
    /// What is done about pods that are left at the deadline.
    pub on_deadline: OnDeadline,
}

impl Policy {
    /// Whether pods are ended whatever their budgets say.
    fn is_forced(self, times: Times) -> bool {
        self.on_deadline == OnDeadline::Force && times.now >= times.deadline
    }
}

/// Pods that nobody makes again, or that lose what they have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossyPods {
    /// Evict them like all others: the machine goes.
    #[default]
    Evict,
    /// Wait for somebody to move them; the drain fails at its deadline if nobody does.
    Block,
}

/// The end of a drain that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDeadline {
    /// It has failed, and says why.
    #[default]
    Fail,
    /// What is left is deleted without grace, whatever budgets say.
    Force,
}

/// A pod of a Node that is drained for the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// The pod, as every drain sees it.
    pub pod: Pod,
    /// Its priority; 0 if it has none.
    pub priority: i32,
    /// The DaemonSet that controls it.
    pub daemon_set: Option<String>,
    /// Whether something is lost when it goes: nobody makes another one, or it has a volume that goes with it.
    pub is_lossy: bool,
    /// Whether somebody must agree before it goes.
    pub has_finalizer: bool,
    /// Seconds that it may take to end.
    pub grace: u32,
    /// What its owner wants.
    pub label: DrainLabel,
}

/// What the owner of a pod wants of a fleet drain, by its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainLabel {
    /// It has no such label.
    Absent,
    /// The pod is left alone.
    Skip,
    /// The pod is waited for until it has finished.
    Wait,
}

/// What is known of a Node beside its pods.
#[derive(Debug, Clone, Copy)]
pub struct Conditions<'a> {
    /// Whether its kubelet has fallen silent.
    pub is_silent: bool,
    /// DaemonSets that are gone, as namespace and name: nobody puts their pods back.
    pub gone: &'a BTreeSet<(String, String)>,
    /// The operator's own pod, as namespace and name.
    pub own: Option<(&'a str, &'a str)>,
}

/// The pods of a Node at one moment, and what is done about each.
#[derive(Debug, Clone)]
pub struct PodPlan {
    drain: Drain,
    pods: BTreeMap<PodId, PodFacts>,
    /// The operator's own pod.
    own: Option<PodId>,
    is_silent: bool,
    times: Times,
    policy: Policy,
}

impl PodPlan {
    /// Sorts the pods of a Node. What its owner wants left alone is left out.
    pub fn new(all: Vec<PodFacts>, conditions: Conditions<'_>, times: Times, policy: Policy) -> Self {
        let is_orphan = |facts: &PodFacts| {
            let name = facts.daemon_set.clone();
            name.is_some_and(|name| conditions.gone.contains(&(facts.pod.id.namespace.clone(), name)))
        };
        let all: Vec<PodFacts> = all.into_iter().filter(|facts| facts.label != DrainLabel::Skip).collect();
        let to_drain = |facts: &PodFacts| Pod {
            of_daemon_set: facts.pod.of_daemon_set && !is_orphan(facts),
            ..facts.pod.clone()
        };
        let pods: Vec<Pod> = all.iter().map(to_drain).collect();
        let setting = Setting {
            now: times.now,
            started_at: times.cordoned_at,
            is_silent: conditions.is_silent,
            forced: policy.is_forced(times),
        };
        let own = conditions.own.and_then(|(namespace, name)| {
            pods.iter().map(|pod| &pod.id).find(|id| id.namespace == namespace && id.name == name)
        });
        Self {
            drain: Drain::plan(&pods, setting),
            own: own.cloned(),
            is_silent: conditions.is_silent,
            pods: all.into_iter().map(|facts| (facts.pod.id.clone(), facts)).collect(),
            times,
            policy,
        }
    }

    /// Whether nothing is left that must go.
    pub fn is_complete(&self) -> bool {
        self.drain.is_complete() || self.is_abandoned()
    }

    /// Whether the time is over and all that is left has been asked to go, by a kubelet that does not hear it: to wait for
    /// the grace of its pods would change nothing.
    pub fn is_abandoned(&self) -> bool {
        let is_over = self.times.now >= self.times.deadline && !self.policy.is_forced(self.times);
        self.is_silent && is_over && self.drain.of(Bucket::Running).next().is_none()
    }

    /// How many must still go.
    pub fn left(&self) -> usize {
        self.drain.of(Bucket::Running).count() + self.drain.of(Bucket::Ending).count()
    }

    /// Pods that nobody makes again, or that lose what they have written, and go all the same: the machine goes too.
    pub fn losses(&self) -> Vec<&PodId> {
        let lossy = |id: &&PodId| self.pods.get(*id).is_some_and(|facts| facts.is_lossy);
        self.drain.of(Bucket::Running).filter(lossy).collect()
    }

    /// The pods to ask now: the wave whose turn it is. A wave waits until those before it are gone, but for no more than
    /// half of the time; what a budget holds must not keep others from even being asked. We ourselves go when nobody else
    /// is left to be asked: whoever comes after us has to find out first what we know.
    pub fn to_ask(&self) -> Vec<PodId> {
        let Times { now, accepted_at, deadline, .. } = self.times;
        let (whole, left) = (deadline.duration_since(accepted_at), deadline.duration_since(now));
        let is_late = |id: &&PodId| {
            let end = self.pods.get(*id).and_then(|facts| facts.pod.deletion);
            self.policy.cap_pod_grace && now < deadline && end.is_some_and(|end| end > deadline)
        };
        let running = self.drain.of(Bucket::Running).filter(|id| self.held_for(id).is_none());
        let mut all: Vec<PodId> =
            running.chain(self.drain.of(Bucket::Ending).filter(is_late)).cloned().collect();
        if all.iter().any(|id| self.own.as_ref() != Some(id)) {
            all.retain(|id| self.own.as_ref() != Some(id));
        }
        if self.times.is_short() || left * 2 <= whole {
            return all;
        }
        let waiting = self.drain.of(Bucket::Running).chain(self.drain.of(Bucket::Ending));
        let waiting = waiting.filter(|id| self.held_for(id).is_none());
        let Some(turn) = waiting.map(|id| self.wave(id)).min() else { return all };
        all.into_iter().filter(|id| self.wave(id) <= turn).collect()
    }

    /// How a pod is asked.
    pub fn way(&self, id: &PodId) -> Way {
        if self.policy.is_forced(self.times) {
            return Way::Force;
        }
        let Times { now, deadline, .. } = self.times;
        // Without any grace it would be gone before its kubelet has heard of it.
        let left = u32::try_from(deadline.duration_since(now).as_secs().max(1)).unwrap_or(u32::MAX);
        let own = self.pods.get(id).map_or(0, |facts| facts.grace);
        Way::Evict { grace: Some(left).filter(|left| self.policy.cap_pod_grace && own > *left) }
    }

    /// Why a pod is not asked to go, and waited for all the same.
    fn held_for(&self, id: &PodId) -> Option<&'static str> {
        let facts = self.pods.get(id).filter(|_| !self.policy.is_forced(self.times))?;
        match facts.label {
            DrainLabel::Wait => Some("left to finish, by its label"),
            DrainLabel::Absent | DrainLabel::Skip
                if facts.is_lossy && self.policy.lossy_pods == LossyPods::Block =>
            {
                Some("not evicted, since something would be lost with it (--lossy-pods=block)")
            }
            DrainLabel::Absent | DrainLabel::Skip => None,
        }
    }

    /// Pods that are waited for and not asked, by reason, in words; empty if there are none.
    pub fn held(&self) -> String {
        let mut held: BTreeMap<&str, Vec<&PodId>> = BTreeMap::new();
        for id in self.drain.of(Bucket::Running) {
            if let Some(why) = self.held_for(id) {
                held.entry(why).or_default().push(id);
            }
        }
        let part = |(why, pods): (&str, Vec<&PodId>)| format!("{} {why}: {}", pods.len(), name_some(&pods));
        held.into_iter().map(part).collect::<Vec<_>>().join("; ")
    }

    fn wave(&self, id: &PodId) -> u8 {
        if self.own.as_ref() == Some(id) {
            return 3;
        }
        match self.pods.get(id).map_or(0, |facts| facts.priority) {
            i32::MIN..0 => 0,
            0..SYSTEM => 1,
            SYSTEM.. => 2,
        }
    }

    /// What is left and what is in its way, in words; empty if nothing is.
    pub fn summary(&self, attempts: &Attempts) -> String {
        let silent = if self.is_abandoned() { "the kubelet is silent" } else { "" };
        let parts =
            [self.drain.summary(), silent.to_owned(), attempts.summary(), self.held(), self.overdue()];
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
            let end = self.pods.get(*id).and_then(|facts| facts.pod.deletion);
            end.is_some_and(|end| self.times.now.duration_since(end) > OVERDUE)
        };
        let late: Vec<&PodId> = self.drain.of(Bucket::Ending).filter(is_late).collect();
        let held = |id: &&PodId| self.pods.get(*id).is_some_and(|facts| facts.has_finalizer);
        let (held, slow): (Vec<_>, Vec<_>) = late.into_iter().partition(held);
        let words = [(held, "held by a finalizer"), (slow, "overdue: the kubelet does not end it")];
        let part = |(pods, why): (Vec<&PodId>, &str)| {
            (!pods.is_empty()).then(|| format!("{} {why}: {}", pods.len(), name_some(&pods)))
        };
        words.into_iter().filter_map(part).collect::<Vec<_>>().join("; ")
    }
}

fn name_some(pods: &[&PodId]) -> String {
    pods.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
    use crate::drain::{Attempt, Outcome};
    use expect_test::expect;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn facts(name: &str, priority: i32) -> PodFacts {
        let id = PodId { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") };
        let pod = Pod { id, created_at: at(-100), deletion: None, of_daemon_set: false, mirror: false };
        PodFacts {
            pod,
            priority,
            daemon_set: None,
            is_lossy: false,
            has_finalizer: false,
            grace: 30,
            label: DrainLabel::Absent,
        }
    }

    fn ending(name: &str, end: i64) -> PodFacts {
        let mut facts = facts(name, 0);
        facts.pod.deletion = Some(at(end));
        facts
    }

    fn look(pods: Vec<PodFacts>, now: i64, grace: i64) -> PodPlan {
        chosen(pods, now, grace, Policy::default())
    }

    fn chosen(pods: Vec<PodFacts>, now: i64, grace: i64, policy: Policy) -> PodPlan {
        let conditions =
            Conditions { is_silent: false, gone: &BTreeSet::new(), own: Some(("default", "operator")) };
        PodPlan::new(
            pods,
            conditions,
            Times { now: at(now), accepted_at: at(0), cordoned_at: at(0), deadline: at(grace) },
            policy,
        )
    }

    fn names(pods: Vec<PodId>) -> Vec<String> {
        pods.into_iter().map(|id| id.name).collect()
    }

    fn everybody() -> Vec<PodFacts> {
        vec![facts("batch", -5), facts("web", 0), facts("proxy", SYSTEM), facts("operator", 0)]
    }

    #[test]
    fn waves_go_one_after_the_other_and_we_go_last() {
        let mut pods = everybody();
        for expected in ["batch", "web", "proxy", "operator"] {
            assert_eq!(names(look(pods.clone(), 1, 600).to_ask()), [expected]);
            let gone = pods.remove(0);
            let mut still_there = pods.clone();
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
        let all = ["batch", "proxy", "web"];
        assert_eq!(names(look(everybody(), 1, 30).to_ask()), all, "a short grace");
        assert_eq!(names(look(everybody(), 300, 600).to_ask()), all, "half of a long one is over");
        assert_eq!(names(look(vec![facts("operator", 0)], 1, 30).to_ask()), ["operator"], "and we go last");
    }

    #[test]
    fn a_daemon_set_that_is_gone_does_not_protect_its_pods() {
        let mut daemon = facts("logs-x", 0);
        daemon.pod.of_daemon_set = true;
        daemon.daemon_set = Some("logs".into());
        assert!(look(vec![daemon.clone()], 1, 600).is_complete());
        let gone = BTreeSet::from([("default".to_owned(), "logs".to_owned())]);
        let conditions = Conditions { is_silent: false, gone: &gone, own: None };
        let times = Times { now: at(1), accepted_at: at(0), cordoned_at: at(0), deadline: at(600) };
        assert_eq!(
            names(PodPlan::new(vec![daemon], conditions, times, Policy::default()).to_ask()),
            ["logs-x"]
        );
    }

    #[test]
    fn a_pod_that_wants_to_be_left_alone_is() {
        let alone = PodFacts { label: DrainLabel::Skip, ..facts("pinned", 0) };
        assert!(look(vec![alone], 1, 600).is_complete());
    }

    #[test]
    fn a_pod_that_wants_to_finish_is_waited_for_and_holds_no_other_up() {
        let job = PodFacts { label: DrainLabel::Wait, ..facts("job", -5) };
        let look = look(vec![job, facts("web", 0)], 1, 600);
        assert_eq!(names(look.to_ask()), ["web"]);
        assert!(!look.is_complete());
        assert_eq!(look.held(), "1 left to finish, by its label: default/job");
    }

    #[test]
    fn what_would_be_lost_is_evicted_or_waited_for_as_it_was_chosen() {
        let pods = || vec![PodFacts { is_lossy: true, ..facts("bare", 0) }, facts("web", 0)];
        assert_eq!(names(look(pods(), 1, 600).to_ask()), ["bare", "web"]);
        let block = Policy { lossy_pods: LossyPods::Block, ..Policy::default() };
        assert_eq!(names(chosen(pods(), 1, 600, block).to_ask()), ["web"]);
        let failure = chosen(pods(), 600, 600, block).failure(&Attempts::default());
        assert!(failure.contains("1 not evicted, since something would be lost with it"), "{failure}");
    }

    #[test]
    fn a_pod_has_no_more_time_than_the_drain_if_that_is_chosen() {
        let cap = Policy { cap_pod_grace: true, ..Policy::default() };
        let pods = || vec![facts("web", 0), ending("slow", 90), ending("fine", 55)];
        let plain = look(pods(), 40, 60);
        assert_eq!(names(plain.to_ask()), ["web"]);
        assert_eq!(plain.way(&facts("web", 0).pod.id), Way::Evict { grace: None });
        let capped = chosen(pods(), 40, 60, cap);
        assert_eq!(names(capped.to_ask()), ["web", "slow"], "who would end too late is asked again");
        assert_eq!(capped.way(&facts("web", 0).pod.id), Way::Evict { grace: Some(20) });
        let early = chosen(pods(), 10, 60, cap);
        assert_eq!(early.way(&facts("web", 0).pod.id), Way::Evict { grace: None }, "its own time is enough");
    }

    #[test]
    fn at_the_deadline_everything_goes_if_that_is_chosen() {
        let force =
            Policy { on_deadline: OnDeadline::Force, lossy_pods: LossyPods::Block, ..Policy::default() };
        let pods = vec![
            PodFacts { is_lossy: true, ..facts("bare", 0) },
            PodFacts { label: DrainLabel::Wait, ..facts("job", 0) },
            PodFacts { label: DrainLabel::Skip, ..facts("pinned", 0) },
            ending("slow", 90),
        ];
        assert!(chosen(pods.clone(), 59, 60, force).to_ask().is_empty());
        let over = chosen(pods, 60, 60, force);
        assert_eq!(names(over.to_ask()), ["bare", "job", "slow"]);
        assert_eq!(over.way(&facts("bare", 0).pod.id), Way::Force);
    }

    #[test]
    fn the_last_words_name_counts_pods_and_budgets() {
        let blocked = |name: &str| Attempt {
            pod: facts(name, 0).pod.id,
            outcome: Outcome::Blocked(
                "The disruption budget web-pdb needs 2 healthy pods and has 2 currently".into(),
            ),
        };
        let pods = vec![
            facts("web-0", 0),
            facts("web-1", 0),
            PodFacts { has_finalizer: true, ..ending("stuck", -20) },
            ending("slow", -30),
            ending("fine", 9),
        ];
        let look = look(pods, 10, 10);
        expect![[r#"not drained within 10 s: 2 pods to evict: default/web-0, default/web-1; 3 pods ending: default/fine, default/slow, default/stuck; default/web-0 is held by its disruption budget: The disruption budget web-pdb needs 2 healthy pods and has 2 currently; default/web-1 is held by its disruption budget: The disruption budget web-pdb needs 2 healthy pods and has 2 currently; 1 held by a finalizer: default/stuck; 1 overdue: the kubelet does not end it: default/slow"#]]
        .assert_eq(&look.failure(&Attempts(vec![blocked("web-0"), blocked("web-1")])));
        assert_eq!(look.left(), 5);
    }

    #[test]
    fn who_waits_only_for_a_silent_kubelet_has_done_what_there_was_to_do() {
        let look = |pods: Vec<PodFacts>, now, is_silent| {
            let conditions = Conditions { is_silent, gone: &BTreeSet::new(), own: None };
            let times = Times { now: at(now), accepted_at: at(0), cordoned_at: at(0), deadline: at(10) };
            PodPlan::new(pods, conditions, times, Policy::default())
        };
        assert!(!look(vec![ending("web", 31)], 9, true).is_complete(), "its kubelet may come back");
        let over = look(vec![ending("web", 31)], 10, true);
        assert!(over.is_complete());
        assert_eq!(over.summary(&Attempts::default()), "1 pod ending: default/web; the kubelet is silent");
        assert!(!look(vec![ending("web", 31)], 10, false).is_complete(), "this one hears");
        assert!(
            !look(vec![ending("web", 31), facts("held", 0)], 10, true).is_complete(),
            "one was not asked"
        );
    }

    #[test]
    fn a_text_has_an_end() {
        let long = "ä".repeat(5000);
        assert_eq!(cut(long).chars().count(), TEXT + 3);
    }

    #[test]
    fn only_a_pod_that_came_in_spite_of_the_cordon_has_come_back() {
        let mut young = facts("young", 0);
        young.pod.created_at = at(60);
        let conditions = Conditions { is_silent: false, gone: &BTreeSet::new(), own: None };
        let look = |cordoned| {
            let times =
                Times { now: at(200), accepted_at: at(0), cordoned_at: at(cordoned), deadline: at(600) };
            PodPlan::new(vec![young.clone()], conditions, times, Policy::default())
        };
        assert_eq!(names(look(90).to_ask()), ["young"], "the Node was open when it came");
        assert!(look(0).is_complete(), "it would come again");
    }
}
