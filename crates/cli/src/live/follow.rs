//! An eject, step by step, as it can be seen from outside.

use super::find;
use anyhow::Result;
use fivespot_api::names::DISABLED_FOR;
use fivespot_cluster::{Error, Shell, Watched};
use fivespot_core::drain::{Drain, Setting};
use fivespot_core::lifecycle::Phase;
use fivespot_core::observed::{Needs, Observed, Pods, Presence, UnreachableReason, Workload};
use fivespot_core::reclaim::{Reclaim, Stage};
use jiff::Timestamp;
use std::fmt;
use std::time::Duration;

/// How often it is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// What people wait for, in the order in which it usually comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is remembered in status: from here on it finishes.
    Accepted,
    /// No pod is left that has to go.
    PodsGone,
    /// The Machine is deleted, or going.
    MachineDeleted,
    /// The schedule is disabled, or held if that was refused.
    ScheduleDisabled,
    /// Nothing of the machine is left in the cluster.
    Disabled,
}

impl Step {
    const ALL: [Self; 5] =
        [Self::Accepted, Self::PodsGone, Self::MachineDeleted, Self::ScheduleDisabled, Self::Disabled];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::PodsGone => "PodsGone",
            Self::MachineDeleted => "MachineDeleted",
            Self::ScheduleDisabled => "ScheduleDisabled",
            Self::Disabled => "Disabled",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted by the controller: from here on it finishes",
            Self::PodsGone => "pods gone",
            Self::MachineDeleted => "Machine deleted",
            Self::ScheduleDisabled => "schedule disabled, and held",
            Self::Disabled => "Disabled: nothing of it is left in the cluster",
        })
    }
}

/// One eject that is followed.
pub(super) struct Follow {
    last: Watched,
    left: Vec<Step>,
    /// Whether the caller may not read the Machine or the Node: whether pods are left cannot be seen then.
    hides_pods: bool,
}

impl Follow {
    /// What was not there at the beginning is not waited for.
    pub(super) fn new(watched: &Watched) -> Self {
        let status = watched.machine.status.as_ref();
        let has_machine = status.is_some_and(|status| status.machine_ref.is_some());
        let has_node = status.is_some_and(|status| status.node_ref.is_some())
            || watched.machine.returned_node().is_some();
        let mut left = Step::ALL.to_vec();
        left.retain(|step| match step {
            Step::PodsGone => has_node,
            Step::MachineDeleted => has_machine,
            Step::Accepted | Step::ScheduleDisabled | Step::Disabled => true,
        });
        Self { last: watched.clone(), left, hides_pods: false }
    }

    /// The steps that are done now and were not before.
    pub(super) async fn look(&mut self, shell: &Shell) -> Result<Vec<Step>> {
        let key = self.last.key();
        self.last = find(shell, &key.namespace, &key.name).await?;
        let needs = Needs { certainty: true, pods: true, ..Needs::default() };
        // Who may not see the Machine or the Node still sees what status says.
        let observed = shell.observe(&self.last, needs).await;
        if observed.as_ref().map_or_else(Error::is_forbidden, is_node_hidden) {
            self.hides_pods = true;
            self.left.retain(|step| *step != Step::PodsGone);
        }
        let observed = observed.ok();
        let done = |step: &Step| is_done(*step, &self.last, observed.as_ref());
        let (new, left) = self.left.iter().partition(|step| done(step));
        self.left = left;
        Ok(new)
    }

    /// Whether the caller may not see what becomes of the pods.
    pub(super) fn hides_pods(&self) -> bool {
        self.hides_pods
    }

    /// Whether there is nothing more to come.
    pub(super) fn is_over(&self) -> bool {
        !self.left.contains(&Step::Disabled)
    }

    /// Whether all is done that the controller can do, and somebody must clean the host.
    pub(super) fn needs_cleaning(&self) -> bool {
        let memory = self.last.machine.memory();
        let is_held = memory.reclaim.is_some_and(|reclaim| reclaim.hold);
        is_held && memory.phase == Some(Phase::Error) && self.last.machine.returned_node().is_some()
    }

    /// How far it is, in words.
    pub(super) fn state(&self) -> String {
        if self.left.contains(&Step::Accepted) {
            return "the controller has not taken the request on. Does 5spot-controller run? The request stands"
                .to_owned();
        }
        let status = self.last.machine.status.as_ref();
        let message = status.and_then(|status| status.message.clone()).unwrap_or_default();
        if self.needs_cleaning() { message } else { format!("{message}. The controller goes on by itself") }
    }
}

/// Whether the way to the Node is a Secret that the caller may not read.
fn is_node_hidden(observed: &Observed) -> bool {
    match &observed.workload {
        Workload::Unreachable(why) => why.reason == UnreachableReason::SecretForbidden,
        Workload::NotAsked | Workload::Reachable(..) => false,
    }
}

fn is_done(step: Step, watched: &Watched, observed: Option<&Observed>) -> bool {
    let memory = watched.machine.memory();
    let Some(reclaim) = memory.reclaim.filter(|reclaim| reclaim.stage() != Stage::Over) else { return false };
    let annotations = watched.machine.metadata.annotations.as_ref();
    let is_disabled = annotations.and_then(|all| all.get(DISABLED_FOR)) == Some(&reclaim.id);
    match step {
        Step::Accepted => true,
        Step::PodsGone => observed.is_some_and(|observed| are_pods_gone(observed, &reclaim)),
        Step::MachineDeleted => {
            let goes = |observed: &Observed| match &observed.machine {
                Presence::Ours(machine) => machine.object.deleting_since.is_some(),
                Presence::Absent(_) => true,
                Presence::Foreign(_) | Presence::NotServed(_) | Presence::Unknown(_) => false,
            };
            // The schedule is never disabled before the Machine is deleted.
            reclaim.machine_deleted || is_disabled || observed.is_some_and(goes)
        }
        Step::ScheduleDisabled => reclaim.hold || is_disabled,
        // The kill switch may have been set meanwhile: the machine is out all the same.
        Step::Disabled => reclaim.hold && matches!(memory.phase, Some(Phase::Disabled | Phase::Terminated)),
    }
}

fn are_pods_gone(observed: &Observed, reclaim: &Reclaim) -> bool {
    match &observed.workload {
        Workload::Unreachable(_) => false,
        // Without a Machine nobody looks for a Node, and without a Node there are no pods.
        Workload::NotAsked | Workload::Reachable(_, None) => true,
        Workload::Reachable(_, Some(node)) => match (&node.pods, reclaim.accepted_at) {
            (Pods::Listed(pods), Some(started_at)) => {
                let is_silent = node.is_silent();
                let setting = Setting { now: Timestamp::now(), started_at, is_silent, forced: true };
                Drain::plan(pods, setting).is_complete()
            }
            (Pods::NotAsked, _) | (Pods::Listed(_), None) => false,
        },
    }
}
