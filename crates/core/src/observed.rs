//! The world as far as a decision looks at it: small owned views of the objects around one ScheduledMachine.
//!
//! A view says how it is known. What a watch has *not* got may still exist (its label was stripped, the watch is
//! behind), so an absence is a [`Certainty::Rumour`] until the server itself answered 404. Nothing is deleted or
//! declared finished on a rumour: [`crate::lifecycle::decide`] asks for a closer look instead ([`Needs`]).

use crate::claim::{Claim, Rival};
use crate::drain::Pod;
use crate::host::{HostId, LentHost};
use crate::intent::{Effect, Taint};
use crate::lifecycle::Checked;
use crate::reclaim::{Reclaim, Request};
use crate::taint::Claims;
use jiff::Timestamp;

/// Everything that is known about the world around one ScheduledMachine.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Whether the Cluster API is served at all.
    pub cluster_api: Served,
    /// The Cluster the machine joins.
    pub cluster: Cluster,
    /// The bootstrap object.
    pub bootstrap: Presence<Object>,
    /// The infrastructure object.
    pub infrastructure: Presence<Object>,
    /// The Machine.
    pub machine: Presence<Machine>,
    /// The cluster that holds the Node.
    pub workload: Workload,
    /// What reclaim agents are told on behalf of this ScheduledMachine, on whatever Node.
    pub agent_configs: Vec<AgentConfig>,
    /// The pod of the reclaim agent on the Node.
    pub agent: AgentSight,
    /// Whether our finalizer stands on the ScheduledMachine.
    pub finalizer: bool,
    /// What this ScheduledMachine shows of itself to others that lend the same host.
    pub claim: Claim,
    /// Other ScheduledMachines that give the same address to the same kind of provider.
    pub rivals: Vec<Rival>,
    /// What the provider says is wrong, in its own words, if somebody asked.
    pub provider_says: Option<String>,
    /// Identity of the two embedded specs: others have another.
    pub spec_id: String,
    /// What the last pass left in status.
    pub memory: Memory,
}

/// Whether the server has a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Served {
    /// It has.
    Yes,
    /// It has not; the text names what is missing.
    No(String),
}

/// How an absence is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// A watch has no such object.
    Rumour,
    /// The server answered that there is none.
    Confirmed,
}

/// An object that should bear the name of the ScheduledMachine.
#[derive(Debug, Clone, PartialEq)]
pub enum Presence<T> {
    /// There is none.
    Absent(Certainty),
    /// There is one, and it is not ours.
    Foreign(Foreign),
    /// There is one that names this ScheduledMachine as its owner.
    Ours(T),
    /// Its kind is not served; the text names it. Nothing of a kind that is not served exists.
    NotServed(String),
    /// The server does not say, through any version of the kind. A conversion webhook that is down looks like this, so
    /// no way out may wait for it.
    Unknown(Unknown),
}

/// Why nobody can say whether an object exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// In words.
    pub why: String,
    /// Whether the server refused to say, so that a person must give us the right to ask.
    pub is_refused: bool,
}

/// Somebody else's object under a name we need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Kind and name.
    pub what: String,
    /// Its controller, if it has one.
    pub owner: Option<String>,
}

/// A Cluster API Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// There is none.
    Absent(Certainty),
    /// There is one.
    Present {
        /// `spec.paused`.
        paused: bool,
        /// Whether it is being deleted.
        deleting: bool,
    },
}

/// The version of an object as it was read. Two looks at an object that differ in nothing else show the same.
#[derive(Debug, Clone, Default)]
pub struct Version(pub String);

impl PartialEq for Version {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Version {}

/// What every object of ours has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Identity: another object of the same name has another.
    pub uid: String,
    /// The version it was read in.
    pub version: Version,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its deletion was asked for.
    pub deleting_since: Option<Timestamp>,
    /// Whether a Machine owns it, beside us.
    pub has_machine_owner: bool,
}

/// A Cluster API Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// What every object has.
    pub object: Object,
    /// Identifier of the host, once the provider gave one.
    pub provider_id: Option<String>,
    /// Name of its Node, once there is one.
    pub node_name: Option<String>,
    /// Whether its bootstrap data exists: from then on the bootstrap object is not needed any more.
    pub bootstrapped: bool,
    /// Cluster API's own word on it.
    pub ready: Ready,
    /// What Cluster API says that the deletion waits for.
    pub deleting: Ready,
    /// Whether Cluster API is told to leave the drain alone.
    pub excludes_drain: bool,
    /// Whether Cluster API is told not to wait for volumes.
    pub excludes_volumes: bool,
    /// Pre-drain and pre-terminate hooks that others have set and that hold its deletion.
    pub hooks: Vec<String>,
}

/// A condition of somebody else's object: Ready, but for [`Machine::deleting`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ready {
    /// True, False or not known.
    pub status: Option<bool>,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

/// How the workload cluster is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through a kubeconfig Secret.
    Secret,
    /// It is the management cluster itself.
    Management,
}

/// The cluster that holds Node and Pods.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// Nobody looked, since there is neither a Machine nor a host that was lent before.
    NotAsked,
    /// It cannot be reached; the text says why.
    Unreachable(Unreachable),
    /// It can: with the Node of the Machine, or else the Node that has the name of the host that was lent last.
    Reachable(Access, Option<Box<Node>>),
}

/// Why a workload cluster cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// Whether a kubeconfig Secret was seen now or before: then the management cluster never takes its place.
    pub by_secret: bool,
    /// One word.
    pub reason: UnreachableReason,
    /// A sentence.
    pub message: String,
}

/// Why a workload cluster cannot be reached, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreachableReason {
    /// The Secret is not there any more.
    SecretNotFound,
    /// The Secret was never there, and the management cluster may not take its place.
    NoSecret,
    /// The Secret that the spec names is not there, and may never have been.
    NamedSecretNotFound,
    /// We may not read it.
    SecretForbidden,
    /// What it holds is not a kubeconfig.
    SecretInvalid,
    /// The server does not answer.
    ConnectionFailed,
    /// The server answers with more than is read of any cluster.
    LimitExceeded,
}

/// A Node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: String,
    /// Identifier of the host.
    pub provider_id: Option<String>,
    /// Its Ready condition.
    pub ready: Ready,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether this controller cordoned it: the annotation it writes in the same patch.
    pub cordoned_by_us: bool,
    /// Every taint, in order, whole: they are written back as they were read.
    pub taints: Vec<NodeTaint>,
    /// Our record of taints on the Node.
    pub record: Record,
    /// The Machine for which the reclaim agent is armed on it.
    pub armed_for: Option<String>,
    /// Whether it bears the label by which the reclaim agent runs on it.
    pub labelled: bool,
    /// The host that it runs on, as its kubelet reports it.
    pub host: HostId,
    /// Whose it is.
    pub owner: NodeOwner,
    /// Other ScheduledMachines that ended up on the same Node.
    pub rivals: Vec<Claim>,
    /// A request to give the machine back.
    pub request: Option<Request>,
    /// Its pods, if somebody looked.
    pub pods: Pods,
}

impl Node {
    /// Whether its kubelet has fallen silent. One that says it is not ready lives, and ends its pods in its own time.
    pub fn is_silent(&self) -> bool {
        self.ready.status.is_none()
    }
}

/// Whose a Node is, by the annotations that Cluster API writes to it through the kubeconfig of the cluster. A providerID
/// proves less: whoever may write Machines in a namespace can write any into them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeOwner {
    /// The annotations name no Machine.
    Nobody,
    /// They name the Machine of this ScheduledMachine, in its namespace and its Cluster.
    ThisMachine,
    /// They name another Machine, or the Node runs a control plane; the text says which.
    Other(String),
}

/// What the reclaim agent of a Node is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// The Node.
    pub node: String,
    /// Identity.
    pub uid: String,
    /// The programs it looks for; `None` if it is not as we write it.
    pub commands: Option<Vec<String>>,
}

/// What is seen of the reclaim agent's pod on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSight {
    /// Nobody looked.
    NotAsked,
    /// The pods of reclaim agents cannot be seen; the text says why.
    NotVisible(String),
    /// There is none, or the best of those that stay.
    Seen(Option<AgentPod>),
}

/// The reclaim agent's pod on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    /// Name.
    pub name: String,
    /// How it is.
    pub state: AgentPodState,
}

/// How far the reclaim agent's pod is, from worst to best.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentPodState {
    /// Its container does not run; the text says why, as far as that is known.
    Waiting(String),
    /// Its container runs, and is not ready.
    Running,
    /// It is ready.
    Ready,
}

/// A taint as it stands on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTaint {
    /// Key.
    pub key: String,
    /// Value; `None` and empty are the same to Kubernetes, but not to a patch that compares.
    pub value: Option<String>,
    /// Effect, as text: others may use effects we do not know.
    pub effect: String,
    /// When it was added, for NoExecute.
    pub time_added: Option<String>,
}

/// The Node's annotation that records which taints are ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// There is none.
    None,
    /// There is one, with the text it was read from.
    Read(Vec<Taint<Effect>>, String),
    /// There is one that nobody can read.
    Unreadable(String),
}

impl Record {
    /// What it names.
    pub fn entries(&self) -> &[Taint<Effect>] {
        match self {
            Self::Read(taints, _) => taints,
            // What nobody can read names nothing.
            Self::None | Self::Unreadable(_) => &[],
        }
    }
}

/// The pods of a Node.
#[derive(Debug, Clone, PartialEq)]
pub enum Pods {
    /// Nobody looked.
    NotAsked,
    /// These.
    Listed(Vec<Pod>),
}

/// What the last pass left in status: the only memory there is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// `status.phase`, if it is one of ours.
    pub phase: Option<crate::lifecycle::Phase>,
    /// `status.shutdown`.
    pub shutdown: Option<Shutdown>,
    /// Reason of the Scheduled condition.
    pub scheduled: Option<String>,
    /// Reason of the NodeTainted condition.
    pub tainted: Option<String>,
    /// Which taints are ours: what no kubelet can write.
    pub taints: Claims,
    /// `status.lastScheduledTime`.
    pub last_scheduled: Option<Timestamp>,
    /// `status.reclaim`.
    pub reclaim: Option<Reclaim>,
    /// The host that was lent last: `status.host`, or the annotation where status is lost.
    pub host: Option<LentHost>,
    /// The same as the annotation alone has it, which survives a move and a restore.
    pub noted_host: Option<LentHost>,
    /// What the server said of the embedded specs when it was last asked.
    pub checked: Option<Checked>,
    /// Reason of the Prepared condition.
    pub prepared: Option<String>,
    /// Reason and message of the Ready condition.
    pub ready: Option<(String, String)>,
    /// Whether the workload cluster could not be reached.
    pub was_unreachable: bool,
    /// Reason of the ReclaimAgent condition.
    pub agent: Option<String>,
    /// Since when the ReclaimAgent condition is False.
    pub without_agent_since: Option<Timestamp>,
    /// Whether people were told that the host came back.
    pub told_of_return: bool,
}

/// An exit under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// When it began, or when it began anew to cordon a Node that was not cordoned in time.
    pub started_at: Timestamp,
    /// When the drain ends, done or not.
    pub drain_deadline: Timestamp,
    /// Why it began.
    pub cause: Cause,
    /// Identity of the Machine that it began for; `None` if there was none. The next Machine has an exit of its own.
    pub machine: Option<String>,
}

/// Why a machine leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its window closed.
    WindowClosed,
    /// `spec.schedule.enabled` is false.
    ScheduleDisabled,
    /// The ScheduledMachine is being deleted.
    Deleted,
    /// `spec.killSwitch` is true.
    KillSwitch,
    /// The Cluster is being deleted.
    ClusterDeleting,
    /// The owner took it back.
    Reclaim,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 6] = [
        Self::WindowClosed,
        Self::ScheduleDisabled,
        Self::Deleted,
        Self::KillSwitch,
        Self::ClusterDeleting,
        Self::Reclaim,
    ];

    /// Whether it leaves no time for grace.
    pub fn is_emergency(self) -> bool {
        match self {
            Self::KillSwitch | Self::Reclaim => true,
            Self::WindowClosed | Self::ScheduleDisabled | Self::Deleted | Self::ClusterDeleting => false,
        }
    }

    /// The word in status.
    pub fn word(self) -> &'static str {
        match self {
            Self::WindowClosed => "WindowClosed",
            Self::ScheduleDisabled => "ScheduleDisabled",
            Self::Deleted => "Deleted",
            Self::KillSwitch => "KillSwitch",
            Self::ClusterDeleting => "ClusterDeleting",
            Self::Reclaim => "EmergencyReclaim",
        }
    }

    /// Reads the word in status.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.word() == word)
    }
}

/// What a decision must know that a quick look does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing of its own that may be needed or not")]
pub struct Needs {
    /// The server's own answer on Machine and Cluster: what a watch has not got may exist, and what it has may have
    /// changed.
    pub certainty: bool,
    /// The server's own answer on the two provider objects. It depends on their provider, which may be down, so a
    /// Machine leaves without it.
    pub parts: bool,
    /// The pods of the Node.
    pub pods: bool,
    /// The provider's own words on what takes so long. Nothing is decided on them: they are shown.
    pub words: bool,
}

impl Needs {
    /// Whether `known` covers this.
    pub fn within(self, known: Self) -> bool {
        (known.certainty || !self.certainty)
            && (known.parts || !self.parts)
            && (known.pods || !self.pods)
            && (known.words || !self.words)
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            certainty: self.certainty || other.certainty,
            parts: self.parts || other.parts,
            pods: self.pods || other.pods,
            words: self.words || other.words,
        }
    }

    /// The server's own answer on every object around a machine.
    pub const OBJECTS: Self = Self { certainty: true, parts: true, pods: false, words: false };
}

impl Ready {
    /// What it says, in one line; `otherwise` if it says nothing. Cluster API writes several reasons as a list of lines
    /// with bullets, whose parts may be lists again.
    pub fn words(&self, otherwise: &str) -> String {
        match (self.reason.as_str(), self.message.trim()) {
            ("", "") => otherwise.to_owned(),
            (reason, "") => reason.to_owned(),
            (_, message) => one_line(message),
        }
    }
}

/// Several lines in one. A line that ends with a colon leads to the next.
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("* ").trim());
    lines.filter(|line| !line.is_empty()).fold(String::new(), |mut all, line| {
        let between = match all.as_str() {
            "" => "",
            before if before.ends_with(':') => " ",
            _ => "; ",
        };
        all.push_str(between);
        all.push_str(line);
        all
    })
}

impl<T> Presence<T> {
    /// Ours, if it is.
    pub fn ours(&self) -> Option<&T> {
        match self {
            Self::Ours(object) => Some(object),
            Self::Absent(_) | Self::Foreign(_) | Self::NotServed(_) | Self::Unknown(_) => None,
        }
    }

    /// Why nobody can say whether there is one, if it is so.
    pub fn unknown(&self) -> Option<&Unknown> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Absent(_) | Self::Foreign(_) | Self::NotServed(_) | Self::Ours(_) => None,
        }
    }

    /// Whether its absence is only a rumour.
    pub fn is_rumour(&self) -> bool {
        matches!(self, Self::Absent(Certainty::Rumour))
    }
}

impl Workload {
    /// The Node, if one is seen.
    pub fn node(&self) -> Option<&Node> {
        match self {
            Self::Reachable(_, node) => node.as_deref(),
            Self::NotAsked | Self::Unreachable(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_reasons_is_told_in_one_line_whole() {
        for (text, expected) in [
            ("", ""),
            ("  Waiting  ", "Waiting"),
            ("* A: no\n* B: no", "A: no; B: no"),
            (
                "* InfrastructureReady:\n  * Provisioned: connection refused\n* NodeHealthy: waiting",
                "InfrastructureReady: Provisioned: connection refused; NodeHealthy: waiting",
            ),
        ] {
            assert_eq!(one_line(text), expected);
        }
    }
}
