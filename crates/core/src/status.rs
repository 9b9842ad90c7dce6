//! What people are shown of a decision: the whole status, computed anew in every pass.
//!
//! Nothing in it is an elapsed time or the time of the pass, so that an unchanged world means an unchanged status
//! and no write.

use crate::host::{self, LentHost, Returned};
use crate::lifecycle::{
    Checked, Decision, Phase, Prepared, ReclaimAgent, Scheduled, Taints, Waiting, not_cleaned,
};
use crate::observed::{
    Access, Machine, Object, Observed, Presence, Shutdown, UnreachableReason, Workload, one_line,
};
use crate::reclaim::Reclaim;
use crate::taint::{self, Claims};
use jiff::Timestamp;

/// Everything status says, but for what only the server's objects know (names, kinds, generation).
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The phase.
    pub phase: Phase,
    /// What it means for this machine.
    pub message: String,
    /// Whether the window is open; `None` if the schedule cannot be read.
    pub in_schedule: Option<bool>,
    /// Conditions, in the order they are shown.
    pub conditions: Vec<Condition>,
    /// Identity of the Machine.
    pub machine: Option<String>,
    /// Identity of the bootstrap object.
    pub bootstrap: Option<String>,
    /// Identity of the infrastructure object.
    pub infrastructure: Option<String>,
    /// Name and identity of the Node; the latter only while it is seen.
    pub node: Option<(String, Option<String>)>,
    /// Identifier of the host.
    pub provider_id: Option<String>,
    /// Taints that are ours.
    pub taints: Claims,
    /// When a Machine was last made.
    pub last_scheduled: Option<Timestamp>,
    /// When the next window opens.
    pub next_activation: Option<Timestamp>,
    /// When this window closes, or the drain ends.
    pub next_cleanup: Option<Timestamp>,
    /// The exit under way.
    pub shutdown: Option<Shutdown>,
    /// The last reclaim.
    pub reclaim: Option<Reclaim>,
    /// The host that is lent, or was lent last.
    pub host: Option<LentHost>,
    /// What the server said of the embedded specs.
    pub checked: Option<Checked>,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which.
    pub kind: ConditionKind,
    /// True, False, or `None` for Unknown.
    pub status: Option<bool>,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// The conditions of a ScheduledMachine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionKind {
    /// All is as it should be now.
    Ready,
    /// Something is being done about it; only there while it is.
    Reconciling,
    /// Nothing more can be done without a person; only there while it is so.
    Stalled,
    /// In the window and allowed.
    Scheduled,
    /// Cluster API's word on the Machine.
    MachineReady,
    /// The taints are as declared.
    NodeTainted,
    /// The workload cluster answers.
    WorkloadReachable,
    /// A host that was handed back is in the cluster all the same; only there while it is so.
    HostNotCleaned,
    /// All is there that lending the machine needs.
    Prepared,
    /// A reclaim agent looks at the Node.
    ReclaimAgent,
}

impl ConditionKind {
    /// The condition's type.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Scheduled => "Scheduled",
            Self::MachineReady => "MachineReady",
            Self::NodeTainted => "NodeTainted",
            Self::WorkloadReachable => "WorkloadReachable",
            Self::HostNotCleaned => "HostNotCleaned",
            Self::Prepared => "Prepared",
            Self::ReclaimAgent => "ReclaimAgent",
        }
    }
}

/// Reasons of WorkloadReachable that tell that a kubeconfig Secret was seen: the management cluster never takes its
/// place afterwards. This is the only memory of it.
pub const SECRET_SEEN: [&str; 5] = [
    "KubeconfigSecret",
    "KubeconfigSecretNotFound",
    "KubeconfigSecretInvalid",
    "ConnectionFailed",
    "LimitExceeded",
];

/// Reason of WorkloadReachable where the management cluster is the workload cluster.
pub const MANAGEMENT_CLUSTER: &str = "ManagementCluster";

/// Renders what a decision means for people.
pub fn report(decision: &Decision, observed: &Observed) -> Report {
    let machine = observed.machine.ours();
    let settled = matches!(decision.phase, Phase::Disabled | Phase::Terminated);
    let window = decision.window.filter(|_| !settled);
    let draining = decision
        .shutdown
        .as_ref()
        .filter(|_| machine.is_some_and(|machine| machine.object.deleting_since.is_none()));
    let next_cleanup = draining
        .map(|shutdown| shutdown.drain_deadline)
        .or_else(|| window.filter(|window| window.active).and_then(|window| window.until));
    let node = machine.and_then(|machine| machine.node_name.clone()).map(|name| {
        let uid = observed.workload.node().filter(|node| node.name == name).map(|node| node.uid.clone());
        (name, uid)
    });
    let taints = match &decision.taints {
        Taints::Settled { record, .. } => Claims { applied: record.clone(), pending: Vec::new() },
        Taints::Claimed { claims, .. } => claims.clone(),
        Taints::NoNode | Taints::NodeNotReady | Taints::PatchFailed(_) => claims(observed),
    };
    Report {
        phase: decision.phase,
        message: message(decision),
        in_schedule: decision.window.map(|window| window.active),
        conditions: conditions(decision, observed),
        machine: machine.map(|machine| machine.object.uid.clone()),
        bootstrap: uid(&observed.bootstrap),
        infrastructure: uid(&observed.infrastructure),
        node,
        provider_id: machine.and_then(|machine| machine.provider_id.clone()),
        taints,
        last_scheduled: machine.map(|machine| machine.object.created_at).or(observed.memory.last_scheduled),
        next_activation: decision.next_activation.filter(|_| !settled),
        next_cleanup,
        shutdown: decision.shutdown.clone(),
        reclaim: decision.reclaim.clone(),
        host: host::lent_host(observed),
        checked: decision.checked.clone(),
    }
}

fn uid(object: &Presence<Object>) -> Option<String> {
    object.ours().map(|object| object.uid.clone())
}

/// What is claimed while nothing is decided about it: as before, unless there is no Node.
fn claims(observed: &Observed) -> Claims {
    match &observed.workload {
        Workload::Unreachable(_) | Workload::Reachable(_, Some(_)) => observed.memory.taints.clone(),
        Workload::NotAsked | Workload::Reachable(_, None) => Claims::default(),
    }
}

fn message(decision: &Decision) -> String {
    if let Some(waiting) = &decision.waiting {
        return waiting.to_string();
    }
    match decision.phase {
        Phase::Active => "The machine is in the cluster and its Node is Ready".to_owned(),
        Phase::Inactive => "Outside the time window: the machine is with its owner".to_owned(),
        Phase::Disabled if decision.resume_command.is_some() => held(decision),
        Phase::Disabled => {
            "spec.schedule.enabled is false: the machine stays with its owner until it is true".to_owned()
        }
        Phase::Terminated => "The kill switch is set: the machine stays out until it is false".to_owned(),
        Phase::Pending | Phase::ShuttingDown | Phase::EmergencyRemove | Phase::Error => String::new(),
    }
}

/// Why the machine is held, and what to do about it: whoever reads this a week later has forgotten.
fn held(decision: &Decision) -> String {
    let Some(reclaim) = &decision.reclaim else { return String::new() };
    let why = if reclaim.reason.is_empty() { "no reason was given" } else { &reclaim.reason };
    let state = match (decision.scheduled, &reclaim.refused) {
        (_, Some(refused)) => {
            format!(
                "spec.schedule.enabled could not be set to false ({refused}), and it is held all the same"
            )
        }
        (Scheduled::ReclaimHold, None) => {
            "spec.schedule.enabled was set to true again, and it is held all the same".to_owned()
        }
        _ => "spec.schedule.enabled was set to false".to_owned(),
    };
    let command = decision.resume_command.as_deref().unwrap_or_default();
    format!(
        "The owner took the machine back ({why}); {state}. To lend it again: {command} (which annotates it with \
         5spot.finos.org/resume={})",
        reclaim.id
    )
}

fn conditions(decision: &Decision, observed: &Observed) -> Vec<Condition> {
    let mut all = vec![ready(decision)];
    match decision.phase {
        Phase::Pending | Phase::ShuttingDown | Phase::EmergencyRemove => {
            let is_stalled = decision.waiting.as_ref().is_some_and(Waiting::is_stalled);
            let kind = if is_stalled { ConditionKind::Stalled } else { ConditionKind::Reconciling };
            all.push(Condition { kind, status: Some(true), ..ready(decision) });
        }
        Phase::Error => {
            all.push(Condition { kind: ConditionKind::Stalled, status: Some(true), ..ready(decision) });
        }
        Phase::Active | Phase::Inactive | Phase::Disabled | Phase::Terminated => {}
    }
    all.push(scheduled(decision));
    all.push(machine_ready(observed.machine.ours()));
    all.push(node_tainted(&decision.taints));
    all.extend(workload_reachable(&observed.workload));
    all.push(prepared(&decision.prepared));
    all.push(reclaim_agent(&decision.agent));
    all.extend(host_not_cleaned(observed));
    all
}

fn prepared(prepared: &Prepared) -> Condition {
    let (status, message) = match prepared {
        Prepared::NotChecked => (None, "The provider objects have not been tried yet".to_owned()),
        Prepared::Yes => (Some(true), "The server would create all objects of the machine".to_owned()),
        Prepared::No { message, .. } => (Some(false), message.clone()),
    };
    Condition { kind: ConditionKind::Prepared, status, reason: prepared.reason(), message }
}

fn reclaim_agent(agent: &ReclaimAgent) -> Condition {
    let (status, reason, message) = (agent.status(), agent.reason(), agent.to_string());
    Condition { kind: ConditionKind::ReclaimAgent, status, reason, message }
}

fn host_not_cleaned(observed: &Observed) -> Option<Condition> {
    let (node, returned) = host::returned(observed)?;
    let (status, reason, message) = match returned {
        Returned::SameHost => (Some(true), "NodeWithoutMachine", not_cleaned(&node.name)),
        Returned::NameOnly => (
            None,
            "SameNameOnly",
            format!(
                "Node {} has the name of the Node that was lent, and another machine id: it is taken for another host \
                 and not touched. If it is the same host, clean it and delete the Node",
                node.name
            ),
        ),
    };
    Some(Condition { kind: ConditionKind::HostNotCleaned, status, reason, message })
}

fn ready(decision: &Decision) -> Condition {
    let (status, own_reason) = match decision.phase {
        Phase::Active => (true, "NodeReady"),
        Phase::Inactive => (true, "OutsideWindow"),
        Phase::Disabled if decision.scheduled == Scheduled::ReclaimHold => (true, "ReclaimHold"),
        Phase::Disabled => (true, "ScheduleDisabled"),
        Phase::Terminated => (true, "KillSwitchActivated"),
        Phase::Pending => (false, "Pending"),
        Phase::ShuttingDown => (false, "ShuttingDown"),
        Phase::EmergencyRemove => (false, "EmergencyRemove"),
        Phase::Error => (false, "Error"),
    };
    let reason = decision.waiting.as_ref().map_or(own_reason, Waiting::reason);
    Condition { kind: ConditionKind::Ready, status: Some(status), reason, message: message(decision) }
}

fn scheduled(decision: &Decision) -> Condition {
    let held = held(decision);
    let (status, message) = match decision.scheduled {
        Scheduled::EmergencyReclaim => (Some(false), "The owner takes the machine back"),
        Scheduled::EmergencyReclaimDisabledSchedule | Scheduled::ReclaimHold => (Some(false), held.as_str()),
        Scheduled::InWindow => (Some(true), "The time window is open"),
        Scheduled::OutsideWindow => (Some(false), "The time window is closed"),
        Scheduled::ScheduleDisabled => (Some(false), "spec.schedule.enabled is false"),
        Scheduled::KillSwitchActivated => (Some(false), "spec.killSwitch is true"),
        Scheduled::Deleting => (Some(false), "The object is being deleted"),
        Scheduled::InvalidSpec => (None, "The spec cannot be read"),
    };
    let (reason, message) = (decision.scheduled.word(), message.to_owned());
    Condition { kind: ConditionKind::Scheduled, status, reason, message }
}

fn machine_ready(machine: Option<&Machine>) -> Condition {
    let (status, reason, message) = match machine {
        None => (None, "NoMachine", "There is no Machine".to_owned()),
        Some(machine) => {
            let said = one_line(&machine.ready.message);
            match machine.ready.status {
                Some(true) => (Some(true), "MachineReady", said),
                Some(false) => (Some(false), "MachineNotReady", said),
                None => (None, "MachineNotReported", said),
            }
        }
    };
    Condition { kind: ConditionKind::MachineReady, status, reason, message }
}

fn node_tainted(taints: &Taints) -> Condition {
    let (status, reason, message) = match taints {
        Taints::NoNode => (None, "NoNodeYet", "There is no Node, or it is leaving".to_owned()),
        Taints::NodeNotReady => {
            (Some(false), "NodeNotReady", "Taints are applied when the Node is Ready".to_owned())
        }
        Taints::PatchFailed(why) => (Some(false), "PatchFailed", why.clone()),
        Taints::Settled { conflicts, .. } | Taints::Claimed { conflicts, .. } if !conflicts.is_empty() => {
            let all = taint::describe(conflicts);
            (Some(false), "TaintOwnershipConflict", all)
        }
        Taints::Claimed { .. } => {
            (Some(false), "Applying", "The declared taints are being applied to the Node".to_owned())
        }
        Taints::Settled { record, .. } if record.is_empty() => {
            (Some(true), "Applied", "No taints are declared".to_owned())
        }
        Taints::Settled { .. } => (Some(true), "Applied", "All declared taints are on the Node".to_owned()),
    };
    Condition { kind: ConditionKind::NodeTainted, status, reason, message }
}

/// Absent while nobody looked: the condition of the last time stays, since it is remembered by it.
fn workload_reachable(workload: &Workload) -> Option<Condition> {
    let (status, reason, message) = match workload {
        Workload::NotAsked => return None,
        Workload::Reachable(Access::Secret, _) => {
            (true, "KubeconfigSecret", "Reached through its kubeconfig Secret".to_owned())
        }
        Workload::Reachable(Access::Management, _) => (
            true,
            MANAGEMENT_CLUSTER,
            "There is no kubeconfig Secret: it is the management cluster itself".to_owned(),
        ),
        Workload::Unreachable(why) => {
            let reason = match why.reason {
                UnreachableReason::SecretNotFound => "KubeconfigSecretNotFound",
                UnreachableReason::NoSecret => "NoKubeconfigSecret",
                UnreachableReason::NamedSecretNotFound => "KubeconfigSecretRefNotFound",
                UnreachableReason::SecretForbidden | UnreachableReason::ConnectionFailed if why.by_secret => {
                    "ConnectionFailed"
                }
                UnreachableReason::SecretForbidden => "KubeconfigSecretForbidden",
                UnreachableReason::SecretInvalid => "KubeconfigSecretInvalid",
                UnreachableReason::ConnectionFailed => "NotReached",
                UnreachableReason::LimitExceeded => "LimitExceeded",
            };
            (false, reason, why.message.clone())
        }
    };
    Some(Condition { kind: ConditionKind::WorkloadReachable, status: Some(status), reason, message })
}
