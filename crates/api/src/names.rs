//! Names, labels and annotations: each is spelled here and nowhere else.

use crate::ScheduledMachine;

/// Finalizer of a ScheduledMachine whose objects exist.
pub const FINALIZER: &str = "5spot.finos.org/scheduledmachine";

/// Annotation of the provider objects that the controller makes; its value is [`CONTROLLER`]. k0smotron fails on a
/// RemoteMachine that has no annotation at all.
pub const CREATED_BY: &str = "5spot.finos.org/created-by";

/// Label of everything that is made for a ScheduledMachine; its value is the name of that.
pub const MACHINE_LABEL: &str = "5spot.finos.org/scheduled-machine";

/// Cluster API's label of everything that belongs to a Cluster.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Cluster API's annotation of an object that its controller must leave alone.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";

/// Annotation of a Node that this product cordoned; its value says which part of it.
pub const CORDONED_BY: &str = "5spot.finos.org/cordoned-by";

/// Value of [`CORDONED_BY`] if it was the controller.
pub const CONTROLLER: &str = "5spot-controller";

/// Value of [`CORDONED_BY`] if it was the fleet operator, its field manager and the name in its requests.
pub const FLEET: &str = "5spot-fleet-operator";

/// Annotation of a Node that its fleet takes back: the record of the drain, as JSON. It is written in the request that
/// cordons the Node, and is all that the next process knows.
pub const FLEET_RECLAIM: &str = "5spot.finos.org/fleet-reclaim";

/// Annotation beside [`FLEET_RECLAIM`]: how far the drain is and what is in its way, in words.
pub const FLEET_PROGRESS: &str = "5spot.finos.org/fleet-progress";

/// BigFleet's label, or annotation, of a Node that says which machine of the fleet it is.
pub const FLEET_MACHINE: &str = "bigfleet.lucy.sh/machine-id";

/// Label of a pod that says what a drain by the fleet does about it.
pub const FLEET_DRAIN: &str = "5spot.finos.org/fleet-drain";

/// Value of [`FLEET_DRAIN`]: it is left alone, and not waited for.
pub const FLEET_DRAIN_SKIP: &str = "skip";

/// Value of [`FLEET_DRAIN`]: it is not asked to go, and waited for until it has finished.
pub const FLEET_DRAIN_WAIT: &str = "wait";

/// Beginning of the name of the UpcomingNode of a machine.
pub const UPCOMING_PREFIX: &str = "un-";

/// Name of the UpcomingNode of a machine.
pub fn upcoming_node(machine: &str) -> String {
    format!("{UPCOMING_PREFIX}{machine}")
}

/// Annotation of a Node that records which taints are ours: a JSON list of key, effect and value.
pub const APPLIED_TAINTS: &str = "5spot.finos.org/applied-taints";

/// Cluster API's annotation of a Machine whose Node it must not drain.
pub const EXCLUDE_DRAIN: &str = "machine.cluster.x-k8s.io/exclude-node-draining";

/// Cluster API's annotation of a Machine for whose volumes it must not wait.
pub const EXCLUDE_VOLUMES: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";

/// Prefixes of Cluster API's annotations by which others hold the deletion of a Machine.
pub const HOOK_PREFIXES: [&str; 2] =
    ["pre-drain.delete.hook.machine.cluster.x-k8s.io", "pre-terminate.delete.hook.machine.cluster.x-k8s.io"];

/// Annotation by which a machine is asked back at once: on its Node by the reclaim agent, on the ScheduledMachine by
/// hand. Only the value `true` asks.
pub const RECLAIM_REQUESTED: &str = "5spot.finos.org/reclaim-requested";

/// Annotation beside [`RECLAIM_REQUESTED`]: why.
pub const RECLAIM_REASON: &str = "5spot.finos.org/reclaim-reason";

/// Annotation beside [`RECLAIM_REQUESTED`]: when, in RFC 3339 and UTC.
pub const RECLAIM_REQUESTED_AT: &str = "5spot.finos.org/reclaim-requested-at";

/// Annotation of a ScheduledMachine that releases the hold of the reclaim whose id is its value.
pub const RESUME: &str = "5spot.finos.org/resume";

/// Annotation of a ScheduledMachine whose `spec.schedule.enabled` was set to false for the reclaim whose id is its
/// value. It is written in the same request, so that this is done once for each reclaim, whoever dies when.
pub const DISABLED_FOR: &str = "5spot.finos.org/disabled-for-reclaim";

/// Annotation of a ScheduledMachine: the host that was lent last, as JSON of nodeName, machineID and systemUUID. Status
/// has the same; this survives a move of the object and a restore without status.
pub const LENT_HOST: &str = "5spot.finos.org/lent-host";

/// Labels of a Node that runs a control plane.
pub const CONTROL_PLANE_LABELS: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Cluster API's annotation of a Node: the Machine that it belongs to.
pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";

/// Cluster API's annotation of a Node: the namespace of its Machine and of its Cluster.
pub const NODE_CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";

/// Cluster API's annotation of a Node: its Cluster.
pub const NODE_CLUSTER: &str = "cluster.x-k8s.io/cluster-name";

/// Annotation of a Node: identity of the Machine for which the reclaim agent is armed. A Node that comes back bears what
/// it bore, so a request counts only while this is the Machine of today.
pub const ARMED_FOR: &str = "5spot.finos.org/reclaim-armed-for";

/// Label of a ConfigMap for a reclaim agent: identity of the ScheduledMachine on whose behalf it is there.
pub const MACHINE_UID_LABEL: &str = "5spot.finos.org/scheduled-machine-uid";

/// Field managers that put `spec.schedule.enabled` back to what is written elsewhere: of Flux, of Argo CD, of Helm, and of
/// people who apply or replace a stored manifest with kubectl. Server-side apply needs no entry: it is known by its operation.
pub const GITOPS_MANAGERS: [&str; 8] = [
    "kustomize-controller",
    "helm-controller",
    "flux-client-side-apply",
    "argocd-controller",
    "argocd-application-controller",
    "helm",
    "kubectl-client-side-apply",
    "kubectl-replace",
];

/// Label of a Node on which the reclaim agent shall run; its value is [`AGENT_ENABLED`].
pub const AGENT_LABEL: &str = "5spot.finos.org/reclaim-agent";

/// Value of [`AGENT_LABEL`].
pub const AGENT_ENABLED: &str = "enabled";

/// Namespace of our own programs, in every cluster.
pub const SYSTEM_NAMESPACE: &str = "5spot-system";

/// Field manager of the command line.
pub const CLI: &str = "5spot-cli";

/// Field manager of the reclaim agent.
pub const AGENT: &str = "5spot-reclaim-agent";

/// Label of every pod of the reclaim agent; its value is [`AGENT`].
pub const APP_NAME_LABEL: &str = "app.kubernetes.io/name";

/// Beginning of the name of a ConfigMap that tells the reclaim agent of a Node what to look for.
pub const AGENT_CONFIG_PREFIX: &str = "reclaim-agent-";

/// Name of the ConfigMap that tells the reclaim agent of a Node what to look for.
pub fn agent_config_map(node: &str) -> String {
    format!("{AGENT_CONFIG_PREFIX}{node}")
}

/// Key in that ConfigMap.
pub const AGENT_CONFIG_KEY: &str = "reclaim.toml";

/// Name of the bootstrap object, the infrastructure object and the Machine of a ScheduledMachine.
pub fn part_name(machine: &ScheduledMachine) -> &str {
    machine.metadata.name.as_deref().unwrap_or_default()
}

/// Name of the Secret in which Cluster API keeps the kubeconfig of a Cluster.
pub fn kubeconfig_secret(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// On the Lease of a slot: the identity of its holder, which no other process of its name has.
pub const HOLDER_UID: &str = "5spot.finos.org/holder-uid";

/// On the Lease of a slot: how many slots there are, for its holder.
pub const SLOT_COUNT: &str = "5spot.finos.org/slot-count";

/// On the Lease of a slot: the slot that its holder prefers.
pub const PREFERRED_SLOT: &str = "5spot.finos.org/preferred-slot";

/// On the Lease of a slot: the instance that asks its holder to hand it over.
pub const WANTED_BY: &str = "5spot.finos.org/wanted-by";
