//! Which pods of a Node must go, and whether they are gone.
//!
//! Each pod falls into exactly one [`Bucket`]: a list of small questions, the first that holds decides. The same
//! buckets drive what is done and what a person is told. A drain never waits inside a call: it is planned anew in
//! every pass from the pods that are there.

use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::time::Duration;

/// Delay between two looks at a drain, and so between two attempts at an eviction that a budget blocks: what
/// ADR-0009 asks for, and half of what `kubectl drain` takes.
pub const RETRY: Duration = Duration::from_secs(2);

/// The same for a forced drain, which has a minute in all.
pub const FORCED_RETRY: Duration = Duration::from_secs(1);

/// How soon a forced drain is looked at after pods were ended: without grace they are gone when the server has answered.
pub const FORCED_ENDS: Duration = Duration::from_millis(20);

/// The longest forced drain: pods that are deleted without grace are gone in a moment, unless something is broken.
pub const FORCED: Duration = Duration::from_mins(1);

/// A pod made this long after the exit began, on a Node that is cordoned since then, was not put there by a
/// scheduler that had not heard of the cordon yet: it names the Node, or tolerates the cordon, and comes back as
/// often as it is evicted. The two times are told by two clocks, the server's and ours: they may differ by less.
const RETURNS_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// The same for a forced drain, which must not be held up for long by what comes back however often it is ended.
const RETURNS_AFTER_FORCED: SignedDuration = SignedDuration::from_secs(5);

/// A pod that was made after the exit began is left alone until it is this old: its workload makes another one at once,
/// and each eviction would be followed by the next.
const PACE: SignedDuration = SignedDuration::from_secs(10);

/// A pod that should have ended this long ago on a Node whose kubelet is silent will not end.
const LOST_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Pods a message names, of each sort.
const NAMED: usize = 3;

/// A pod of the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Which.
    pub id: PodId,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it should have ended, if it was asked to.
    pub deletion: Option<Timestamp>,
    /// Whether a DaemonSet controls it.
    pub of_daemon_set: bool,
    /// Whether it mirrors a static pod of the kubelet.
    pub mirror: bool,
}

/// Name and identity of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Identity: a StatefulSet's next pod has the same name and lives elsewhere.
    pub uid: String,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bucket {
    /// A kubelet's own: the API server's copy comes back for ever.
    Mirror,
    /// Its DaemonSet would put it back at once.
    DaemonSet,
    /// It has been asked to end and nobody is there who could end it.
    Lost,
    /// It has been asked to end.
    Ending,
    /// It came back after the cordon, and would again.
    Returning,
    /// It must be asked to end.
    Running,
}

impl Bucket {
    /// Whether a drain is not complete while the bucket holds a pod.
    pub fn must_go(self) -> bool {
        match self {
            Self::Mirror | Self::DaemonSet | Self::Lost | Self::Returning => false,
            Self::Ending | Self::Running => true,
        }
    }
}

/// What a drain looks at beside the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Now.
    pub now: Timestamp,
    /// When the exit began.
    pub started_at: Timestamp,
    /// Whether the Node's kubelet has fallen silent.
    pub is_silent: bool,
    /// Whether pods end without grace.
    pub forced: bool,
}

/// All pods of a Node, each in one bucket, in order of name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drain {
    pods: Vec<Sorted>,
    is_forced: bool,
}

/// A pod in its bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sorted {
    id: PodId,
    bucket: Bucket,
    /// Whether it came after the exit began and is too young to be asked to end again.
    is_paced: bool,
}

impl Drain {
    /// Sorts pods into buckets.
    pub fn plan(pods: &[Pod], setting: Setting) -> Self {
        let sort = |pod: &Pod| Sorted {
            id: pod.id.clone(),
            bucket: bucket(pod, setting),
            is_paced: is_paced(pod, setting),
        };
        let mut pods: Vec<Sorted> = pods.iter().map(sort).collect();
        pods.sort_by(|a, b| a.id.cmp(&b.id));
        Self { pods, is_forced: setting.forced }
    }

    /// Pods that must be asked to end now.
    pub fn to_evict(&self) -> Vec<PodId> {
        self.running(false).cloned().collect()
    }

    fn running(&self, is_paced: bool) -> impl Iterator<Item = &PodId> {
        let is_it = move |pod: &&Sorted| pod.bucket == Bucket::Running && pod.is_paced == is_paced;
        self.pods.iter().filter(is_it).map(|pod| &pod.id)
    }

    /// Whether nothing is left that must go.
    pub fn is_complete(&self) -> bool {
        !self.pods.iter().any(|pod| pod.bucket.must_go())
    }

    /// The pods of a bucket.
    pub fn of(&self, wanted: Bucket) -> impl Iterator<Item = &PodId> {
        self.pods.iter().filter(move |pod| pod.bucket == wanted).map(|pod| &pod.id)
    }

    /// What is left, in words; empty if nothing is.
    pub fn summary(&self) -> String {
        let paced = format!("back after the cordon, evicted at most every {} s", PACE.as_secs());
        let parts = [
            (self.running(false).collect(), if self.is_forced { "to end without grace" } else { "to evict" }),
            (self.running(true).collect(), paced.as_str()),
            (self.of(Bucket::Ending).collect(), "ending"),
            (self.of(Bucket::Lost).collect(), "that cannot end since the kubelet is silent"),
            (
                self.of(Bucket::Returning).collect(),
                "that came back after the cordon (its spec names the Node or tolerates the cordon)",
            ),
        ];
        let part = |(pods, words): (Vec<&PodId>, &str)| {
            (!pods.is_empty()).then(|| format!("{} {words}: {}", count(pods.len()), name_some(&pods)))
        };
        parts.into_iter().filter_map(part).collect::<Vec<_>>().join("; ")
    }
}

fn bucket(pod: &Pod, setting: Setting) -> Bucket {
    if pod.mirror {
        return Bucket::Mirror;
    }
    if pod.of_daemon_set {
        return Bucket::DaemonSet;
    }
    match pod.deletion {
        Some(end) if setting.is_silent && setting.now.duration_since(end) > LOST_AFTER => Bucket::Lost,
        // A pod that ends with grace is asked again, without, when there is no time for grace.
        Some(end) if setting.forced && end > setting.now => Bucket::Running,
        Some(_) => Bucket::Ending,
        None if pod.created_at.duration_since(setting.started_at) > returns_after(setting) => {
            Bucket::Returning
        }
        None => Bucket::Running,
    }
}

fn returns_after(setting: Setting) -> SignedDuration {
    if setting.forced { RETURNS_AFTER_FORCED } else { RETURNS_AFTER }
}

/// A pod's age is told by the server's clock and ours: they may differ by less than what is told apart here.
fn is_paced(pod: &Pod, setting: Setting) -> bool {
    let came_after = pod.created_at > setting.started_at;
    !setting.forced && came_after && setting.now.duration_since(pod.created_at) < PACE
}

/// How pods are asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As far as disruption budgets allow.
    Evict {
        /// Seconds that the pod has to end, in the place of its own.
        grace: Option<u32>,
    },
    /// At once, whatever budgets say.
    Force,
}

/// What came of asking one pod to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Which pod.
    pub pod: PodId,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of asking a pod to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ends, or is gone.
    Accepted,
    /// A disruption budget does not allow it now; the server's words name the budget.
    Blocked(String),
    /// The server refused for another reason.
    Refused(String),
}

/// What came of one pass over the pods, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempts(pub Vec<Attempt>);

impl Attempts {
    /// Who is in the way, in words; empty if nobody is.
    pub fn summary(&self) -> String {
        let blocked = self.0.iter().filter_map(|attempt| match &attempt.outcome {
            Outcome::Accepted => None,
            Outcome::Blocked(why) => Some(format!("{} is held by its disruption budget: {why}", attempt.pod)),
            Outcome::Refused(why) => Some(format!("{} cannot be evicted: {why}", attempt.pod)),
        });
        let blocked: Vec<String> = blocked.collect();
        let more = blocked.len().saturating_sub(NAMED);
        let shown = blocked.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
        if more == 0 { shown } else { format!("{shown}; and {more} more") }
    }
}

fn count(pods: usize) -> String {
    if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") }
}

fn name_some(pods: &[&PodId]) -> String {
    let shown = pods.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = pods.len().saturating_sub(NAMED);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn pod(name: &str) -> Pod {
        let id = PodId { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") };
        Pod { id, created_at: at(-100), deletion: None, of_daemon_set: false, mirror: false }
    }

    const GRACEFUL: fn() -> Setting =
        || Setting { now: at(50), started_at: at(0), is_silent: false, forced: false };

    #[test]
    fn a_pass_names_what_is_left_in_order_of_name() {
        let pods = [
            pod("web-1"),
            pod("web-0"),
            Pod { deletion: Some(at(60)), ..pod("ends") },
            Pod { of_daemon_set: true, ..pod("logs") },
            Pod { mirror: true, ..pod("static") },
            Pod { created_at: at(40), ..pod("pinned") },
        ];
        let drain = Drain::plan(&pods, GRACEFUL());
        expect![[r#"2 pods to evict: default/web-0, default/web-1; 1 pod ending: default/ends; 1 pod that came back after the cordon (its spec names the Node or tolerates the cordon): default/pinned"#]]
            .assert_eq(&drain.summary());
        assert!(!drain.is_complete());
    }

    #[test]
    fn what_comes_back_is_not_evicted_as_fast_as_it_comes() {
        let pods = [pod("web"), Pod { created_at: at(25), ..pod("again") }];
        let young = Drain::plan(&pods, Setting { now: at(30), ..GRACEFUL() });
        assert_eq!(young.to_evict(), [pod("web").id]);
        expect!["1 pod to evict: default/web; 1 pod back after the cordon, evicted at most every 10 s: default/again"]
            .assert_eq(&young.summary());
        assert!(!young.is_complete());
        assert_eq!(Drain::plan(&pods, Setting { now: at(36), ..GRACEFUL() }).to_evict().len(), 2);
        let forced = Setting { now: at(30), forced: true, ..GRACEFUL() };
        assert_eq!(
            Drain::plan(&pods, forced).to_evict(),
            [pod("web").id],
            "what comes back holds up no eject"
        );
    }

    #[test]
    fn what_comes_back_or_cannot_end_does_not_hold_a_drain_up() {
        let silent = Setting { is_silent: true, ..GRACEFUL() };
        let pods =
            [Pod { deletion: Some(at(20)), ..pod("lost") }, Pod { created_at: at(40), ..pod("pinned") }];
        assert!(Drain::plan(&pods, silent).is_complete());
        assert!(!Drain::plan(&pods, GRACEFUL()).is_complete(), "a live kubelet may still end it");
    }

    #[test]
    fn a_forced_drain_asks_again_for_pods_that_end_with_grace() {
        let pods = [Pod { deletion: Some(at(300)), ..pod("slow") }];
        assert!(Drain::plan(&pods, GRACEFUL()).to_evict().is_empty());
        assert_eq!(Drain::plan(&pods, Setting { forced: true, ..GRACEFUL() }).to_evict().len(), 1);
    }

    fn any_pod() -> impl Strategy<Value = Pod> {
        let deletion = proptest::option::of(-50_i64..100);
        (0_u8..20, -100_i64..60, deletion, any::<bool>(), any::<bool>()).prop_map(
            |(name, created, deletion, of_daemon_set, mirror)| Pod {
                created_at: at(created),
                deletion: deletion.map(at),
                of_daemon_set,
                mirror,
                ..pod(&format!("p{name}"))
            },
        )
    }

    proptest! {
        /// Law 5: each pod is in exactly one bucket, complete means that no bucket that must go has one, and the
        /// order of the list does not matter.
        #[test]
        fn drain_partition(
            mut pods in proptest::collection::vec(any_pod(), 0..20),
            is_silent: bool,
            forced: bool,
        ) {
            pods.sort_by(|a, b| a.id.cmp(&b.id));
            pods.dedup_by(|a, b| a.id == b.id);
            let setting = Setting { is_silent, forced, ..GRACEFUL() };
            let drain = Drain::plan(&pods, setting);
            let all = [
                Bucket::Mirror, Bucket::DaemonSet, Bucket::Lost, Bucket::Ending, Bucket::Returning, Bucket::Running,
            ];
            let mut seen: Vec<&PodId> = all.iter().flat_map(|bucket| drain.of(*bucket)).collect();
            seen.sort();
            prop_assert_eq!(seen, pods.iter().map(|pod| &pod.id).collect::<Vec<_>>());
            let left = all.iter().filter(|bucket| bucket.must_go()).flat_map(|bucket| drain.of(*bucket)).count();
            prop_assert_eq!(drain.is_complete(), left == 0);
            let reversed: Vec<Pod> = pods.iter().rev().cloned().collect();
            prop_assert_eq!(Drain::plan(&reversed, setting), drain);
        }
    }
}
