//! What a machine goes through.

use crate::harness::{CLOSED, OPEN, World};
use crate::look::Look;
use kube::api::DeleteParams;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Activate,
    GracefulExit,
    KillSwitch,
    Deletion,
    TaintChange,
    Reclaim,
    Resume,
}

fn taints(all: &[(&str, &str)]) -> Value {
    all.iter().map(|(key, value)| json!({"key": key, "value": value, "effect": "NoSchedule"})).collect()
}

impl Scenario {
    pub(crate) const ALL: [Self; 7] = [
        Self::Activate,
        Self::GracefulExit,
        Self::KillSwitch,
        Self::Deletion,
        Self::TaintChange,
        Self::Reclaim,
        Self::Resume,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Activate => "activate",
            Self::GracefulExit => "graceful exit",
            Self::KillSwitch => "kill switch",
            Self::Deletion => "deletion",
            Self::TaintChange => "taint change",
            Self::Reclaim => "reclaim",
            Self::Resume => "resume",
        }
    }

    /// Whether the machine is lent when the scenario begins.
    fn begins_lent(self) -> bool {
        self != Self::Activate
    }

    /// Whether pods may be ended without grace.
    pub(crate) fn is_emergency(self) -> bool {
        matches!(self, Self::KillSwitch | Self::Reclaim)
    }

    /// Whether the machine stays lent, or becomes it.
    pub(crate) fn ends_lent(self) -> bool {
        matches!(self, Self::Activate | Self::TaintChange | Self::Resume)
    }

    pub(crate) async fn prepare(self, world: &World, machine: &str) {
        let cron = if self.begins_lent() { OPEN } else { CLOSED };
        world
            .create(machine, cron, |spec| {
                spec["nodeTaints"] = taints(&[("a", "1"), ("b", "")]);
                spec["killIfCommands"] = json!(["idea"]);
            })
            .await;
    }

    pub(crate) fn is_prepared(self, look: &Look) -> bool {
        look.phase() == if self.begins_lent() { "Active" } else { "Inactive" }
            && (!self.begins_lent() || look.is_armed())
    }

    /// What a run needs beside the machine itself.
    pub(crate) async fn furnish(self, world: &World, machine: &str) {
        match self {
            Self::GracefulExit | Self::KillSwitch | Self::Deletion | Self::Reclaim => {
                world.pod(machine, &format!("{machine}-pod"), |_| {}).await;
            }
            Self::Resume => {
                world.ask_back(machine).await;
                world.until_phase(machine, "Disabled").await;
            }
            Self::Activate | Self::TaintChange => {}
        }
    }

    pub(crate) async fn trigger(self, world: &World, machine: &str) {
        match self {
            Self::Activate => world.open(machine).await,
            Self::GracefulExit => world.close(machine).await,
            Self::KillSwitch => world.patch(machine, json!({"spec": {"killSwitch": true}})).await,
            Self::Deletion => world.delete(machine, &DeleteParams::background()).await,
            Self::TaintChange => {
                let wanted = taints(&[("a", "2"), ("c", "3")]);
                world.patch(machine, json!({"spec": {"nodeTaints": wanted}})).await;
            }
            Self::Reclaim => world.ask_back(machine).await,
            Self::Resume => {
                let id = world.status(machine).await.reclaim.unwrap().id;
                let annotations = json!({"5spot.finos.org/resume": id});
                let spec = json!({"schedule": {"enabled": true}});
                world.patch(machine, json!({"metadata": {"annotations": annotations}, "spec": spec})).await;
            }
        }
    }

    /// Whether an undisturbed run has come to its end.
    pub(crate) fn is_over(self, look: &Look) -> bool {
        match self {
            Self::Activate | Self::Resume => look.phase() == "Active" && look.is_armed(),
            Self::TaintChange => look.has_taint("c=3") && look.phase() == "Active" && look.is_settled(),
            Self::GracefulExit => look.phase() == "Inactive",
            Self::KillSwitch => look.phase() == "Terminated",
            Self::Reclaim => look.phase() == "Disabled",
            Self::Deletion => look.is_gone(),
        }
    }
}

/// Takes a machine away after its run.
pub(crate) async fn clear(world: &World, machine: &str) {
    let _ = world.machines().delete(machine, &DeleteParams::background()).await;
}
