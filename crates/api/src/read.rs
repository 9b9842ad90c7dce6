//! From the API's types to the validated wish of `fivespot-core`.

use crate::{EmbeddedObject, ScheduledMachine};
use fivespot_core::field::Invalid;
use fivespot_core::intent::{Draft, DraftObject, DraftSchedule, Intent, Taint};

impl TryFrom<&ScheduledMachine> for Intent {
    type Error = Invalid;

    fn try_from(machine: &ScheduledMachine) -> Result<Self, Invalid> {
        let spec = &machine.spec;
        let schedule = &spec.schedule;
        let taints: Vec<Taint<String>> = spec
            .node_taints
            .iter()
            .map(|taint| Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            })
            .collect();
        Self::read(&Draft {
            name: machine.metadata.name.as_deref().unwrap_or_default(),
            namespace: machine.metadata.namespace.as_deref().unwrap_or_default(),
            schedule: DraftSchedule {
                days_of_week: &schedule.days_of_week,
                hours_of_day: &schedule.hours_of_day,
                cron: schedule.cron.as_deref(),
                timezone: &schedule.timezone,
            },
            cluster_name: &spec.cluster_name,
            bootstrap: envelope(&spec.bootstrap_spec),
            infrastructure: envelope(&spec.infrastructure_spec),
            labels: &spec.machine_template.labels,
            annotations: &spec.machine_template.annotations,
            priority: spec.priority,
            graceful_shutdown_timeout: &spec.graceful_shutdown_timeout,
            node_drain_timeout: &spec.node_drain_timeout,
            kill_if_commands: spec.kill_if_commands.as_deref().unwrap_or_default(),
            node_taints: &taints,
            kubeconfig_secret: spec.kubeconfig_secret_ref.as_ref().map(|r| (r.name.as_str(), r.key.as_str())),
        })
    }
}

fn envelope(object: &EmbeddedObject) -> DraftObject<'_> {
    DraftObject {
        api_version: &object.api_version,
        kind: &object.kind,
        namespace: object.namespace.as_deref(),
    }
}
