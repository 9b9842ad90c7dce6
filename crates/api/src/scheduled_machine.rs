//! `ScheduledMachine`, `5spot.finos.org/v1alpha1`.
//!
//! The doc comments below are what `kubectl explain` prints: they speak to the person who writes the object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `schedule.timezone` if none is given.
pub const DEFAULT_TIMEZONE: &str = "UTC";
/// `priority` if none is given: the middle, so that there is room on both sides.
pub const DEFAULT_PRIORITY: i64 = 50;
/// `gracefulShutdownTimeout` and `nodeDrainTimeout` if none is given.
pub const DEFAULT_TIMEOUT: &str = "5m";
/// `kubeconfigSecretRef.key` if none is given: the key Cluster API itself uses.
pub const DEFAULT_KUBECONFIG_KEY: &str = "value";

/// A physical machine that is lent to a cluster by the clock. While its time window is open, 5-Spot keeps a
/// Cluster API Machine with its bootstrap and infrastructure objects; when the window closes it drains the
/// Node and takes the machine out again.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "5spot.finos.org",
    version = "v1alpha1",
    kind = "ScheduledMachine",
    namespaced,
    status = "ScheduledMachineStatus",
    shortname = "sm",
    category = "fivespot",
    derive = "PartialEq",
    derive = "Default",
    doc = "A physical machine that is lent to a cluster by the clock: it joins when its time window opens, is drained and taken out when it closes, and is given back at once when its owner needs it.",
    label("clusterctl.cluster.x-k8s.io", ""),
    label("clusterctl.cluster.x-k8s.io/move", ""),
    printcolumn(json_path = ".status.phase", name = "Phase", type_ = "string"),
    printcolumn(json_path = ".status.inSchedule", name = "InSchedule", type_ = "boolean"),
    printcolumn(json_path = ".spec.schedule.enabled", name = "Enabled", type_ = "boolean"),
    printcolumn(json_path = ".status.nodeRef.name", name = "Node", type_ = "string"),
    printcolumn(json_path = ".status.nextTransition", name = "Next", type_ = "string"),
    printcolumn(json_path = ".spec.killSwitch", name = "KillSwitch", type_ = "boolean"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date"),
    printcolumn(json_path = ".spec.schedule.daysOfWeek", name = "Days", type_ = "string", priority = 1),
    printcolumn(json_path = ".spec.schedule.hoursOfDay", name = "Hours", type_ = "string", priority = 1),
    printcolumn(json_path = ".spec.schedule.cron", name = "Cron", type_ = "string", priority = 1),
    printcolumn(json_path = ".spec.schedule.timezone", name = "Zone", type_ = "string", priority = 1),
    printcolumn(json_path = ".spec.clusterName", name = "Cluster", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.instance", name = "Instance", type_ = "integer", priority = 1)
)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduledMachineSpec {
    /// When the machine is lent to the cluster: either days and hours, or a cron expression. Both are read on
    /// the local time of the zone: mon-fri with 22-6 is Monday 00:00 to 06:59 and 22:00 to 23:59, and so on
    /// until Friday 23:59; Saturday 02:00 is outside. An hour that the clock skips does not happen, an hour
    /// that it repeats counts twice.
    pub schedule: Schedule,

    /// Name of the Cluster API Cluster, in this namespace, that the machine joins. Cannot be changed.
    pub cluster_name: String,

    /// The bootstrap object to create when the window opens, such as a K0sWorkerConfig.
    pub bootstrap_spec: EmbeddedObject,

    /// The infrastructure object to create when the window opens, such as a RemoteMachine.
    pub infrastructure_spec: EmbeddedObject,

    /// Labels and annotations for the Cluster API Machine.
    #[serde(skip_serializing_if = "MachineTemplate::is_empty")]
    pub machine_template: MachineTemplate,

    /// When many machines have work at the same moment, higher goes first. From 0 to 255.
    pub priority: i64,

    /// Whole budget of a graceful exit: from the moment it begins to the moment the Machine is deleted,
    /// drained or not. Hours, minutes and seconds, such as 90s, 5m or 1h30m; at most 24h.
    pub graceful_shutdown_timeout: String,

    /// How long pods may take to be evicted. The drain ends after this or after gracefulShutdownTimeout,
    /// whichever is shorter; 0s means no drain at all. Hours, minutes and seconds, such as 90s, 5m or 1h30m;
    /// at most 24h.
    pub node_drain_timeout: String,

    /// Set to true to take the machine out of the cluster at once, without a graceful drain, and to keep it
    /// out. Set back to false to return to the schedule.
    pub kill_switch: bool,

    /// Programs whose start on the machine takes it back from the cluster at once. Each entry is compared
    /// with the name of every process (exactly; the kernel keeps 15 characters) and with its command line
    /// (as a part of it). While there are entries, the reclaim agent runs on the Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_if_commands: Option<Vec<String>>,

    /// Taints for the Node, applied once it is Ready. Taints that others put on the Node are never touched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_taints: Vec<NodeTaint>,

    /// Secret, in this namespace, that holds the kubeconfig of the workload cluster. Left out, it is the
    /// Secret Cluster API writes, `<clusterName>-kubeconfig`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<KubeconfigSecretRef>,
}

/// When a machine is lent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Schedule {
    /// Days: mon, tue, wed, thu, fri, sat, sun; ranges such as mon-fri, which may wrap as in fri-mon; comma
    /// lists of these. Empty means every day.
    pub days_of_week: Vec<String>,

    /// Hours of the day: 0 to 23; ranges such as 9-17, with both ends included, which may wrap as in 22-6;
    /// comma lists of these. Empty means every hour.
    pub hours_of_day: Vec<String>,

    /// A cron expression of five fields (minute, hour, day of month, month, day of week) that names the
    /// minutes in which the machine is lent: `* 9-16 * * mon-fri` is Monday to Friday from 09:00 to 16:59.
    /// Excludes daysOfWeek and hoursOfDay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,

    /// Time zone in which the schedule is read, by its IANA name, such as Europe/Zurich.
    pub timezone: String,

    /// Set to false to take the machine out gracefully and keep it out. 5-Spot sets it to false itself when
    /// it gives the machine back to its owner.
    pub enabled: bool,
}

/// An object that 5-Spot creates when the window opens and removes when it closes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EmbeddedObject {
    /// Group and version of the object.
    pub api_version: String,

    /// Kind of the object.
    pub kind: String,

    /// Namespace of the object. Must be the namespace of this ScheduledMachine, which is also the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// The spec of the object. Passed on to its provider as it is: 5-Spot does not read it.
    pub spec: serde_json::Map<String, serde_json::Value>,
}

/// Labels and annotations for the Cluster API Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineTemplate {
    /// Labels. Keys under kubernetes.io, k8s.io, cluster.x-k8s.io and 5spot.finos.org are reserved. Other keys with a
    /// prefix are refused until an administrator annotates the definition of ScheduledMachine with
    /// machine-keys.5spot.finos.org/PREFIX=allowed. Keys without a prefix are allowed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations. Keys under kubernetes.io, k8s.io, cluster.x-k8s.io and 5spot.finos.org are reserved. Other keys with a
    /// prefix are refused until an administrator annotates the definition of ScheduledMachine with
    /// machine-keys.5spot.finos.org/PREFIX=allowed. Keys without a prefix are allowed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A taint for the Node. Key and effect together are its identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTaint {
    /// Key of the taint. Keys under kubernetes.io, k8s.io, cluster.x-k8s.io and 5spot.finos.org are reserved.
    pub key: String,

    /// Value of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,

    /// What happens to pods that do not tolerate the taint.
    pub effect: String,
}

/// Where the kubeconfig of the workload cluster stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeconfigSecretRef {
    /// Name of the Secret, in this namespace.
    pub name: String,

    /// Key inside the Secret.
    pub key: String,
}

/// What 5-Spot observed and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduledMachineStatus {
    /// Where the machine stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// What the phase means for this machine, and what to do about it if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Whether the time window is open now, enabled or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_schedule: Option<bool>,

    /// Ready, Reconciling, Stalled, Scheduled, MachineReady, NodeTainted, WorkloadReachable,
    /// Prepared, ReclaimAgent and HostNotCleaned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The Cluster API Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_ref: Option<ObjectRef>,

    /// The bootstrap object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_ref: Option<ObjectRef>,

    /// The infrastructure object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ObjectRef>,

    /// The Node in the workload cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,

    /// Identifier the infrastructure provider gave the machine, as the Machine and the Node carry it.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,

    /// Taints 5-Spot put on the Node. A taint that is neither here nor in pendingNodeTaints is never removed, whatever the
    /// Node's own record says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub applied_node_taints: Vec<NodeTaint>,

    /// Taints that 5-Spot is about to put on the Node: they are written down here first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending_node_taints: Vec<NodeTaint>,

    /// When a Machine was last created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scheduled_time: Option<Time>,

    /// When the next window opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_activation: Option<Time>,

    /// When this window closes; during a graceful exit, when the drain must end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cleanup: Option<Time>,

    /// The earlier of nextActivation and nextCleanup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_transition: Option<Time>,

    /// Generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Slot that this object is in: the instance of the controller that holds it looks after the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<i64>,

    /// The graceful exit under way. Kept here so that a restarted controller goes on where the last stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown: Option<ShutdownStatus>,

    /// The last time the machine was taken back by its owner, and the hold that may follow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<ReclaimStatus>,

    /// The host that is lent, or was lent last: a Node of it that comes back without a Machine is known by this. The
    /// annotation 5spot.finos.org/lent-host has the same, for when status is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostStatus>,

    /// What the API server said when it was asked whether it would create the embedded objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked: Option<CheckedStatus>,
}

/// The outcome of a dry run of the embedded objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckedStatus {
    /// Identity of the embedded specs that were tried.
    pub spec: String,
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Why the server would not create them, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A physical host, as its kubelet reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostStatus {
    /// Name of its Node.
    pub node_name: String,
    /// `status.nodeInfo.machineID` of the Node.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// `status.nodeInfo.systemUUID` of the Node.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}

/// An object in this namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Unique identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A Node of the workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRef {
    /// Always v1.
    pub api_version: String,
    /// Always Node.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Unique identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A graceful exit under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ShutdownStatus {
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When evictions end, done or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Time>,
    /// Why it began: the window closed, the schedule was disabled, or the object was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Unique identity of the Machine that it began for; the next Machine has an exit of its own.
    #[serde(rename = "machineUID", skip_serializing_if = "Option::is_none")]
    pub machine_uid: Option<String>,
}

/// How the machine was last taken back by its owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReclaimStatus {
    /// Identity of this reclaim; what the resume annotation must name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Node that was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Unique identity of that Node.
    #[serde(rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// When the owner asked, letter for letter as the request has it: together with nodeUID it is the identity
    /// of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
    /// Why, such as `process-match: java`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the controller took it on. Not there once somebody resumed the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Time>,
    /// When the forced drain ends, done or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Time>,
    /// Whether the delete of the Machine was sent.
    pub machine_deleted: bool,
    /// Whether `spec.schedule.enabled` was set to false for this reclaim.
    pub disabled: bool,
    /// Why that was refused, if it was: then the hold stands in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Whether the machine is held back until somebody resumes it.
    pub hold: bool,
    /// When the machine was taken back lately, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<Time>,
}

impl MachineTemplate {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

impl Default for ScheduledMachineSpec {
    fn default() -> Self {
        Self {
            schedule: Schedule::default(),
            cluster_name: String::new(),
            bootstrap_spec: EmbeddedObject::default(),
            infrastructure_spec: EmbeddedObject::default(),
            machine_template: MachineTemplate::default(),
            priority: DEFAULT_PRIORITY,
            graceful_shutdown_timeout: DEFAULT_TIMEOUT.to_owned(),
            node_drain_timeout: DEFAULT_TIMEOUT.to_owned(),
            kill_switch: false,
            kill_if_commands: None,
            node_taints: Vec::new(),
            kubeconfig_secret_ref: None,
        }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            days_of_week: Vec::new(),
            hours_of_day: Vec::new(),
            cron: None,
            timezone: DEFAULT_TIMEZONE.to_owned(),
            enabled: true,
        }
    }
}

impl Default for KubeconfigSecretRef {
    fn default() -> Self {
        Self { name: String::new(), key: DEFAULT_KUBECONFIG_KEY.to_owned() }
    }
}
