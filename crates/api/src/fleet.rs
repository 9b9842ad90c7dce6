//! The objects that a cluster and its fleet speak through, `bigfleet.lucy.sh/v1alpha1`.
//!
//! They are BigFleet's own: group, kinds, fields and phases are what its users and tools know. The types are lenient
//! for the reason given in [`crate::ScheduledMachineSpec`]'s module; a request that cannot be read would be a machine
//! that is taken away.

use k8s_openapi::api::core::v1::{ObjectReference, Taint};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::schema::{Field, field, overlay};
use fivespot_core::fleet::phase::Phase;
use fivespot_core::fleet::record::Record;

/// Requirements, spreads and taints of one object; more is a mistake, and a rollup carries all of them.
const ITEMS: usize = 64;

/// What an amount is.
const AMOUNT: &str = "An amount, such as 2, 500m or 8Gi.";

/// Values of one requirement.
const VALUES: usize = 256;

/// A machine on its way into the cluster, in it, or on its way out.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bigfleet.lucy.sh",
    version = "v1alpha1",
    kind = "UpcomingNode",
    plural = "upcomingnodes",
    status = "UpcomingNodeStatus",
    shortname = "upn",
    category = "fleet",
    derive = "PartialEq",
    derive = "Default",
    doc = "A machine of the fleet on its way into the cluster, in it, or on its way out. Written by the fleet operator alone.",
    printcolumn(json_path = ".status.phase", name = "Phase", type_ = "string"),
    printcolumn(json_path = ".status.nodeRef.name", name = "Node", type_ = "string"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase", default)]
pub struct UpcomingNodeSpec {
    /// Labels that the Node will have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// What the Node will offer to pods.
    pub resources: BTreeMap<String, Quantity>,

    /// Taints that the Node will have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// How far a machine is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpcomingNodeStatus {
    /// Provisioning, Launched, Registered, Ready; Draining, Drained, or Failed.
    pub phase: String,

    /// The Node that the machine has become.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<ObjectReference>,

    /// The machine as its provider calls it.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,

    /// When the machine was first heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning_start_time: Option<Time>,

    /// What went wrong last: of a drain that did not end in time, which pods are left and what holds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// A demand for capacity, such as that of one pod that finds no room.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bigfleet.lucy.sh",
    version = "v1alpha1",
    kind = "CapacityRequest",
    namespaced,
    plural = "capacityrequests",
    status = "CapacityRequestStatus",
    shortname = "cr",
    shortname = "crs",
    category = "fleet",
    derive = "PartialEq",
    derive = "Default",
    selectable = ".status.phase",
    doc = "A demand for capacity. The fleet operator sums up all of them and tells the fleet; a demand that is deleted is not wanted any more, and machines that nobody wants are taken away.",
    printcolumn(json_path = ".status.phase", name = "Phase", type_ = "string"),
    printcolumn(json_path = ".spec.priority", name = "Priority", type_ = "integer"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityRequestSpec {
    /// What a Node must be to serve the demand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,

    /// How much is wanted.
    pub resources: BTreeMap<String, Quantity>,

    /// Higher is served first, and may take machines from lower.
    pub priority: i32,

    /// How the demand wants to be spread over the fleet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread: Vec<TopologySpread>,

    /// Which demands want to be close to each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co_location: Option<CoLocation>,

    /// What an interruption by the provider costs, in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interruption_penalty: Option<Quantity>,

    /// What it costs to have the machine taken away, in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclamation_penalty: Option<Quantity>,
}

/// One condition on the labels of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    /// Key of the label.
    pub key: String,

    /// In, NotIn, Exists or DoesNotExist.
    pub operator: String,

    /// Values, for In and NotIn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a demand wants to be spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySpread {
    /// Label whose values are the places.
    pub topology_key: String,

    /// How much one place may have more than another.
    pub max_skew: i32,

    /// DoNotSchedule, or ScheduleAnyway, which the fleet ignores.
    pub when_unsatisfiable: String,
}

/// Which demands want to be close to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CoLocation {
    /// Label whose value must be the same for all of them.
    pub topology_key: String,

    /// Which pods belong together.
    pub label_selector: LabelSelector,
}

/// What has become of a demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityRequestStatus {
    /// Pending, or Acknowledged when the fleet has heard of it.
    pub phase: String,

    /// When the fleet had first heard of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Time>,
}

/// What could be had from the fleet. A hint.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bigfleet.lucy.sh",
    version = "v1alpha1",
    kind = "AvailableCapacity",
    plural = "availablecapacities",
    status = "AvailableCapacityStatus",
    shortname = "avc",
    category = "fleet",
    derive = "PartialEq",
    derive = "Default",
    doc = "What could be had from the fleet, and at what price. A hint, written by the fleet operator alone.",
    printcolumn(json_path = ".spec.availableCount", name = "Count", type_ = "integer"),
    printcolumn(json_path = ".spec.availability", name = "Availability", type_ = "string"),
    printcolumn(json_path = ".spec.cost", name = "Cost", type_ = "string"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase", default)]
pub struct AvailableCapacitySpec {
    /// What these machines are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,

    /// What one of them offers.
    pub resources: BTreeMap<String, Quantity>,

    /// How many there are.
    pub available_count: i32,

    /// None, Low, Medium or High.
    pub availability: String,

    /// Dollars for an hour of one of them.
    pub cost: Quantity,
}

/// Nothing is said about a hint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AvailableCapacityStatus {}

/// The definitions of the kinds that a cluster and its fleet speak through.
///
/// # Panics
/// Never: it has no input, so it would for everybody or for nobody, and every test of the fleet calls it.
pub fn fleet_crds() -> [CustomResourceDefinition; 3] {
    [
        finish(json!(AvailableCapacity::crd()), available_table()),
        finish(json!(CapacityRequest::crd()), request_table()),
        finish(json!(UpcomingNode::crd()), upcoming_table()),
    ]
}

#[expect(clippy::expect_used, reason = "see Panics of the caller")]
fn finish(mut crd: Value, table: Vec<Field>) -> CustomResourceDefinition {
    let schema = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .expect("the derived definition has one version with a schema");
    overlay(schema, table).expect("the table speaks of fields that exist");
    serde_json::from_value(crd).expect("the overlay keeps it a definition")
}

fn requirements(path: [&'static str; 3]) -> Vec<Field> {
    let [list, item, values] = path;
    vec![
        field(list).max_items(ITEMS),
        field(item).required(&["key", "operator"]),
        field(values).max_items(VALUES),
    ]
}

const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

fn available_table() -> Vec<Field> {
    let mut table = requirements(["spec.requirements", "spec.requirements[]", "spec.requirements[].values"]);
    table.extend([
        field("spec").required(&["resources", "cost"]),
        field("spec.resources{}").says(AMOUNT),
        field("spec.requirements[].operator").one_of(&OPERATORS),
        field("spec.availability").one_of(&["None", "Low", "Medium", "High"]),
    ]);
    table
}

fn request_table() -> Vec<Field> {
    let mut table = requirements(["spec.requirements", "spec.requirements[]", "spec.requirements[].values"]);
    table.extend([
        field("spec").required(&["resources", "priority"]),
        field("spec.resources{}").says(AMOUNT),
        field("spec.requirements[].operator").one_of(&OPERATORS),
        field("spec.topologySpread").max_items(ITEMS),
        field("spec.topologySpread[]").required(&["topologyKey", "maxSkew", "whenUnsatisfiable"]),
        field("spec.topologySpread[].whenUnsatisfiable").one_of(&["DoNotSchedule", "ScheduleAnyway"]),
        field("spec.coLocation").required(&["topologyKey", "labelSelector"]),
        field("status.phase").one_of(&["Pending", "Acknowledged"]),
    ]);
    table
}

fn upcoming_table() -> Vec<Field> {
    vec![
        field("spec").required(&["resources"]),
        field("spec.resources{}").says(AMOUNT),
        field("spec.taints").max_items(ITEMS),
        field("status").required(&["phase"]),
        field("status.phase").one_of(&Phase::ALL.map(Phase::as_str)),
    ]
}

/// Reads the annotation of a Node that is taken back. One that cannot be read was not written by the operator.
pub fn read_record(text: &str) -> Option<Record> {
    serde_json::from_str(text).ok()
}

/// The annotation of a Node that is taken back.
pub fn record_text(record: &Record) -> String {
    // Texts, numbers and dates: writing them cannot fail.
    serde_json::to_string(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fivespot_core::fleet::record::{Order, accept, read_grace};

    #[test]
    fn a_record_reads_as_it_was_written() {
        let received_at = "2027-01-15T08:00:00Z".parse().unwrap();
        let order = Order {
            instruction: Some("a".into()),
            machine: "m".into(),
            received_at,
            grace: read_grace(600),
            preemptor_priority: 0,
        };
        let record = accept(None, &order, false, received_at).record().clone();
        assert_eq!(
            record_text(&record),
            r#"{"instructions":["a"],"machine":"m","acceptedAt":"2027-01-15T08:00:00Z","cordonedAt":"2027-01-15T08:00:00Z","deadline":"2027-01-15T08:10:00Z","preemptorPriority":0,"cordonedByUs":true}"#
        );
        assert_eq!(read_record(&record_text(&record)), Some(record));
        for odd in ["", "{}", "null", "[1]"] {
            assert_eq!(read_record(odd), None);
        }
    }
}
