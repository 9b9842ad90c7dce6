//! Status: read as the memory of the last pass, written as the report of this one.

use crate::{
    CheckedStatus, DEFAULT_TIMEOUT, EmbeddedObject, HostStatus, NodeRef, NodeTaint, ObjectRef, ReclaimStatus,
    ScheduledMachine, ScheduledMachineStatus, ShutdownStatus, names,
};
use fivespot_core::duration;
use fivespot_core::host::{HostId, LentHost};
use fivespot_core::intent::{Effect, Taint};
use fivespot_core::lifecycle::{Budget, Checked, Deletion, NodeId, Orders, Part, Patience, Phase};
use fivespot_core::observed::{Cause, Memory, Shutdown};
use fivespot_core::reclaim::{Calls, Reclaim, Request};
use fivespot_core::status::{self, ConditionKind, Report};
use fivespot_core::taint::Claims;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Status of a condition of which nothing is known.
const UNKNOWN: &str = "Unknown";

/// Where the garbage collector says that it takes owner references off, for `--cascade=orphan`.
const ORPHAN: &str = "orphan";

/// A duration that cannot be read counts as the default: an order never waits for the rest of the spec.
const FALLBACK: Duration = Duration::from_mins(5);

/// What is written of a report beside the report itself.
#[derive(Debug, Clone)]
pub struct Writing<'a> {
    /// `apiVersion` of Machines as the controller speaks it.
    pub machine_version: &'a str,
    /// The slot that the object is in.
    pub slot: u32,
    /// The time of this pass.
    pub now: Timestamp,
}

impl ScheduledMachine {
    /// What the object is told to do, whatever else its spec says. Who was the last to write `spec.schedule.enabled` is
    /// not in the object as it is read here.
    pub fn orders(&self, patience: Patience, enabled_by_person: bool) -> Orders {
        let read = |text: &str| duration::parse(text).or_else(|_| duration::parse(DEFAULT_TIMEOUT));
        let read = |text: &str| read(text).unwrap_or(FALLBACK);
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        let deletion = self.metadata.deletion_timestamp.as_ref().map(|_| {
            let orphaning = finalizers.iter().any(|finalizer| finalizer == ORPHAN);
            if orphaning { Deletion::Orphaning } else { Deletion::Whole { patience } }
        });
        Orders {
            deletion,
            kill_switch: self.spec.kill_switch,
            enabled: self.spec.schedule.enabled,
            paused: self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::PAUSED)),
            reclaim: self.calls(enabled_by_person),
            budget: Budget {
                graceful: read(&self.spec.graceful_shutdown_timeout),
                drain: read(&self.spec.node_drain_timeout),
            },
        }
    }

    fn calls(&self, enabled_by_person: bool) -> Calls {
        let annotations = self.metadata.annotations.as_ref();
        let annotation = |name: &str| annotations.and_then(|all| all.get(name)).map(String::as_str);
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        Calls {
            request: Request::read(
                annotation(names::RECLAIM_REQUESTED),
                annotation(names::RECLAIM_REASON),
                annotation(names::RECLAIM_REQUESTED_AT),
            ),
            resume: annotation(names::RESUME).map(str::to_owned),
            commands: self.spec.kill_if_commands.clone().unwrap_or_default(),
            disabled_for: annotation(names::DISABLED_FOR).map(str::to_owned),
            resume_command: format!("5spot resume {name} -n {namespace}"),
            enabled_by_person,
        }
    }

    /// What the last pass left behind.
    pub fn memory(&self) -> Memory {
        let noted_host = self.noted_host();
        let Some(status) = &self.status else {
            return Memory { host: noted_host.clone(), noted_host, ..Memory::default() };
        };
        let find = |kind: ConditionKind| status.conditions.iter().find(|it| it.type_ == kind.word());
        let reason = |kind: ConditionKind| find(kind).map(|condition| condition.reason.clone());
        let false_since = |kind: ConditionKind| {
            let condition = find(kind).filter(|condition| condition.status == "False");
            condition.map(|condition| condition.last_transition_time.0)
        };
        let shutdown = status.shutdown.as_ref().and_then(|shutdown| {
            Some(Shutdown {
                started_at: shutdown.started_at.as_ref()?.0,
                drain_deadline: shutdown.drain_deadline.as_ref()?.0,
                cause: Cause::parse(shutdown.cause.as_deref()?)?,
                machine: shutdown.machine_uid.clone(),
            })
        });
        Memory {
            phase: status.phase.as_deref().and_then(Phase::parse),
            shutdown,
            scheduled: reason(ConditionKind::Scheduled),
            tainted: reason(ConditionKind::NodeTainted),
            taints: Claims {
                applied: status.applied_node_taints.iter().filter_map(read_taint).collect(),
                pending: status.pending_node_taints.iter().filter_map(read_taint).collect(),
            },
            last_scheduled: status.last_scheduled_time.as_ref().map(|time| time.0),
            reclaim: status.reclaim.as_ref().map(Reclaim::from),
            host: status.host.as_ref().map(LentHost::from).or_else(|| noted_host.clone()),
            noted_host,
            checked: status.checked.as_ref().and_then(|checked| {
                let CheckedStatus { spec, at, problem } = checked.clone();
                Some(Checked { spec, at: at?.0, problem })
            }),
            prepared: reason(ConditionKind::Prepared),
            ready: find(ConditionKind::Ready).map(|it| (it.reason.clone(), it.message.clone())),
            was_unreachable: self.is_workload_unreachable(),
            agent: reason(ConditionKind::ReclaimAgent),
            without_agent_since: false_since(ConditionKind::ReclaimAgent),
            told_of_return: self.returned_node().is_some(),
        }
    }

    /// The host that the annotation names. One that cannot be read is written anew when the machine is lent again.
    fn noted_host(&self) -> Option<LentHost> {
        let text = self.metadata.annotations.as_ref()?.get(names::LENT_HOST)?;
        serde_json::from_str::<HostStatus>(text).ok().as_ref().map(LentHost::from)
    }

    /// Whether our finalizer stands on it.
    pub fn has_finalizer(&self) -> bool {
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        finalizers.iter().any(|finalizer| finalizer == names::FINALIZER)
    }

    fn has_condition(&self, kind: ConditionKind, status: &str) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|it| it.type_ == kind.word() && it.status == status)
    }

    /// Whether nothing goes on unless a person does something.
    pub fn needs_a_person(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some(Phase::Error.word()) || self.has_condition(ConditionKind::Stalled, "True")
    }

    /// Whether its workload cluster cannot be reached.
    pub fn is_workload_unreachable(&self) -> bool {
        self.has_condition(ConditionKind::WorkloadReachable, "False")
    }

    /// The Node of its host, if that is in the cluster although the host was handed back.
    pub fn returned_node(&self) -> Option<&str> {
        let host = self.status.as_ref()?.host.as_ref()?;
        self.has_condition(ConditionKind::HostNotCleaned, "True").then_some(host.node_name.as_str())
    }

    /// Whether the kubeconfig Secret of its workload cluster was ever seen.
    pub fn has_seen_secret(&self) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|condition| {
            condition.type_ == ConditionKind::WorkloadReachable.word()
                && status::SECRET_SEEN.contains(&condition.reason.as_str())
        })
    }

    /// Whether status says that its workload cluster is the management cluster itself.
    pub fn is_in_management_cluster(&self) -> bool {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|condition| {
            condition.type_ == ConditionKind::WorkloadReachable.word()
                && condition.reason == status::MANAGEMENT_CLUSTER
        })
    }

    /// `apiVersion` and kind of a provider object: of the one that exists, else of the one that would be made.
    /// Edits of the embedded specs take effect at the next activation.
    pub fn provider_type(&self, part: Part) -> Option<(&str, &str)> {
        let (made, wanted) = self.provider(part)?;
        Some(made.map_or((wanted.api_version.as_str(), wanted.kind.as_str()), |made| {
            (made.api_version.as_str(), made.kind.as_str())
        }))
    }

    fn provider(&self, part: Part) -> Option<(Option<&ObjectRef>, &EmbeddedObject)> {
        let status = self.status.as_ref();
        match part {
            Part::Bootstrap => {
                Some((status.and_then(|it| it.bootstrap_ref.as_ref()), &self.spec.bootstrap_spec))
            }
            Part::Infrastructure => {
                Some((status.and_then(|it| it.infrastructure_ref.as_ref()), &self.spec.infrastructure_spec))
            }
            Part::Machine => None,
        }
    }

    /// The whole status after a pass. Equal to the status before if nothing has changed.
    pub fn next_status(&self, report: &Report, writing: &Writing<'_>) -> ScheduledMachineStatus {
        let before = self.status.clone().unwrap_or_default();
        let reference = |uid: &Option<String>, kind: Option<(&str, &str)>| {
            let (api_version, kind) = kind?;
            Some(ObjectRef {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
                namespace: self.metadata.namespace.clone().unwrap_or_default(),
                name: names::part_name(self).to_owned(),
                uid: Some(uid.clone()?),
            })
        };
        let time = |at: Option<Timestamp>| at.map(Time);
        let status = ScheduledMachineStatus {
            phase: Some(report.phase.word().to_owned()),
            message: Some(report.message.clone()).filter(|message| !message.is_empty()),
            in_schedule: report.in_schedule,
            conditions: self.next_conditions(&before.conditions, report, writing.now),
            machine_ref: reference(&report.machine, Some((writing.machine_version, "Machine"))),
            bootstrap_ref: reference(&report.bootstrap, self.provider_type(Part::Bootstrap)),
            infrastructure_ref: reference(&report.infrastructure, self.provider_type(Part::Infrastructure)),
            node_ref: report.node.as_ref().map(|(name, uid)| NodeRef {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.clone(),
                uid: uid.clone(),
            }),
            provider_id: report.provider_id.clone(),
            applied_node_taints: report.taints.applied.iter().map(write_taint).collect(),
            pending_node_taints: report.taints.pending.iter().map(write_taint).collect(),
            last_scheduled_time: time(report.last_scheduled),
            next_activation: time(report.next_activation),
            next_cleanup: time(report.next_cleanup),
            next_transition: time([report.next_activation, report.next_cleanup].into_iter().flatten().min()),
            observed_generation: self.metadata.generation,
            instance: Some(i64::from(writing.slot)),
            shutdown: report.shutdown.as_ref().map(|shutdown| ShutdownStatus {
                started_at: Some(Time(shutdown.started_at)),
                drain_deadline: Some(Time(shutdown.drain_deadline)),
                cause: Some(shutdown.cause.word().to_owned()),
                machine_uid: shutdown.machine.clone(),
            }),
            reclaim: report.reclaim.as_ref().map(ReclaimStatus::from),
            host: report.host.as_ref().map(HostStatus::from),
            checked: report.checked.as_ref().map(|checked| CheckedStatus {
                spec: checked.spec.clone(),
                at: Some(Time(checked.at)),
                problem: checked.problem.clone(),
            }),
        };
        status.printable()
    }

    fn next_conditions(&self, before: &[Condition], report: &Report, now: Timestamp) -> Vec<Condition> {
        let find = |kind: &str| before.iter().find(|condition| condition.type_ == kind);
        // Status keeps whole seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let mut after = self.render(before, &report.conditions, now);
        // Nobody looked at the workload cluster in this pass. How it was reached is still remembered by the reason.
        let kept = ConditionKind::WorkloadReachable.word();
        if let Some(old) = find(kept).filter(|_| !after.iter().any(|condition| condition.type_ == kept)) {
            let is_old = old.status == UNKNOWN;
            after.push(Condition {
                status: UNKNOWN.to_owned(),
                message: "There is no Node to look for".to_owned(),
                last_transition_time: if is_old { old.last_transition_time.clone() } else { Time(now) },
                observed_generation: self.metadata.generation,
                ..old.clone()
            });
        }
        after
    }

    fn render(&self, before: &[Condition], shown: &[status::Condition], now: Timestamp) -> Vec<Condition> {
        let find = |kind: &str| before.iter().find(|condition| condition.type_ == kind);
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        shown
            .iter()
            .map(|condition| {
                let status = match condition.status {
                    Some(true) => "True",
                    Some(false) => "False",
                    None => UNKNOWN,
                };
                let old = find(condition.kind.word()).filter(|old| old.status == status);
                Condition {
                    type_: condition.kind.word().to_owned(),
                    status: status.to_owned(),
                    reason: condition.reason.to_owned(),
                    message: condition.message.clone(),
                    observed_generation: self.metadata.generation,
                    last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
                }
            })
            .collect()
    }

    /// The status after a pass that failed before anything was known: what was said before stands, but for the claim
    /// that all is well.
    pub fn failed_status(&self, text: &str, is_final: bool, now: Timestamp) -> ScheduledMachineStatus {
        let before = self.status.clone().unwrap_or_default();
        let message = format!("{text}; it is tried again");
        let phase = before.phase.as_deref().and_then(Phase::parse).unwrap_or(Phase::Pending);
        let phase = if is_final { Phase::Error } else { phase };
        let last = if is_final { ConditionKind::Stalled } else { ConditionKind::Reconciling };
        let condition = |kind, status| status::Condition {
            kind,
            status: Some(status),
            reason: "ReconcileFailed",
            message: message.clone(),
        };
        let shown = vec![condition(ConditionKind::Ready, false), condition(last, true)];
        let mut conditions = self.render(&before.conditions, &shown, now);
        let replaced = [ConditionKind::Ready, ConditionKind::Stalled, ConditionKind::Reconciling];
        let stays = |it: &&Condition| !replaced.iter().any(|kind| kind.word() == it.type_);
        conditions.extend(before.conditions.iter().filter(stays).cloned());
        let status = ScheduledMachineStatus {
            phase: Some(phase.word().to_owned()),
            message: Some(message),
            conditions,
            observed_generation: self.metadata.generation,
            ..before
        };
        status.printable()
    }
}

impl From<&HostStatus> for LentHost {
    fn from(status: &HostStatus) -> Self {
        let HostStatus { node_name, machine_id, system_uuid } = status.clone();
        Self { node: node_name, id: HostId { machine_id, system_uuid } }
    }
}

impl From<&LentHost> for HostStatus {
    fn from(host: &LentHost) -> Self {
        let LentHost { node, id: HostId { machine_id, system_uuid } } = host.clone();
        Self { node_name: node, machine_id, system_uuid }
    }
}

impl From<&ReclaimStatus> for Reclaim {
    fn from(status: &ReclaimStatus) -> Self {
        let node = status.node_name.clone().zip(status.node_uid.clone());
        Self {
            id: status.id.clone().unwrap_or_default(),
            node: node.map(|(name, uid)| NodeId { name, uid }),
            requested_at: status.requested_at.clone().unwrap_or_default(),
            reason: status.reason.clone().unwrap_or_default(),
            accepted_at: status.accepted_at.as_ref().map(|time| time.0),
            drain_deadline: status.drain_deadline.as_ref().map(|time| time.0),
            machine_deleted: status.machine_deleted,
            disabled: status.disabled,
            refused: status.refused.clone(),
            hold: status.hold,
            recent: status.recent.iter().map(|time| time.0).collect(),
        }
    }
}

impl From<&Reclaim> for ReclaimStatus {
    fn from(reclaim: &Reclaim) -> Self {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Self {
            id: text(&reclaim.id),
            node_name: reclaim.node.as_ref().map(|node| node.name.clone()),
            node_uid: reclaim.node.as_ref().map(|node| node.uid.clone()),
            requested_at: text(&reclaim.requested_at),
            reason: text(&reclaim.reason),
            accepted_at: reclaim.accepted_at.map(Time),
            drain_deadline: reclaim.drain_deadline.map(Time),
            machine_deleted: reclaim.machine_deleted,
            disabled: reclaim.disabled,
            refused: reclaim.refused.clone(),
            hold: reclaim.hold,
            recent: reclaim.recent.iter().copied().map(Time).collect(),
        }
    }
}

fn write_taint(taint: &Taint<Effect>) -> NodeTaint {
    NodeTaint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: taint.effect.word().to_owned(),
    }
}

/// A taint that nobody can read is not ours.
fn read_taint(taint: &NodeTaint) -> Option<Taint<Effect>> {
    let NodeTaint { key, value, effect } = taint.clone();
    Some(Taint { key, value: value.unwrap_or_default(), effect: Effect::parse(&effect)? })
}
