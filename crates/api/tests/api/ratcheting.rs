//! A rule that gets stricter must not lock up the objects that break it already.
//!
//! The definition is installed under another group, first without any rule and without policies; every object the
//! table says is malformed is stored, and one that every policy would refuse; then rules and policies come back. Each
//! of these objects must still take everything that handing a machine back needs, from an account that may write
//! ScheduledMachines and nothing else.

use crate::policies::grant_rules;
use crate::setup::{apply, cluster, create, dry_run, message, read_yaml};
use crate::table::Table;
use fivespot_api::scheduled_machine_crd;
use fivespot_testenv::{ControlPlane, Identity, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const GROUP: &str = "ratcheting.example.com";

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_breaks_a_newer_rule_can_still_be_given_back() {
    let (plane, client, namespace) = cluster("ratcheting").await;
    let strict = under_group(json!(scheduled_machine_crd()), GROUP);
    install(&client, &without_rules(&strict)).await;
    let api = machines_of(GROUP, &client, &namespace).await;

    let mut broken = Table::load().malformed(&namespace);
    broken.push(("against every policy".to_owned(), against_every_policy()));
    let mut stored = Vec::new();
    for (name, mut object) in broken {
        object["apiVersion"] = json!(format!("{GROUP}/v1alpha1"));
        object["metadata"]["finalizers"] = json!(["example.com/guard"]);
        let made = create(&api, &object).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        stored.push((name, made));
    }
    assert!(stored.len() > 100, "only {} malformed objects", stored.len());

    install(&client, &strict).await;
    install_policies(plane);
    let mut fresh = crate::setup::machine("fresh");
    fresh["apiVersion"] = json!(format!("{GROUP}/v1alpha1"));
    fresh["spec"]["schedule"]["hoursOfDay"] = json!(["24"]);
    eventually("the rules are in force", async || {
        let refused = create(&api, &fresh).await.is_err();
        let _ = api.delete("fresh", &DeleteParams::default()).await;
        refused
    })
    .await;

    let rule = json!({
        "apiGroups": [GROUP], "resources": ["scheduledmachines", "scheduledmachines/status"],
        "verbs": ["get", "patch"],
    });
    grant_rules(plane, &namespace, ACCOUNT, &[rule]);
    let account = plane.management().client_as(&Identity::user(ACCOUNT)).await.unwrap();
    let api = Api::namespaced_with(account, &namespace, &resource(GROUP));
    policies_are_in_force(&api, &machines_of(GROUP, &client, &namespace).await).await;

    let stuck = stuck(&api, &stored).await;
    println!("{} malformed objects took {} kinds of change each", stored.len(), changes().len());
    assert!(stuck.is_empty(), "objects that can no longer be changed:\n{}", stuck.join("\n"));
}

/// An account that may write ScheduledMachines and nothing else.
const ACCOUNT: &str = "ratchet";

fn against_every_policy() -> Value {
    let mut object = crate::setup::machine("against-every-policy");
    let keys = json!({"metal3.io/BareMetalHost": "theirs"});
    object["metadata"]["annotations"] = json!({"5spot.finos.org/lent-host": "{}"});
    object["spec"]["machineTemplate"] = json!({"labels": keys, "annotations": keys});
    object["spec"]["kubeconfigSecretRef"] = json!({"name": "theirs"});
    object["spec"]["bootstrapSpec"]["kind"] = json!("OddConfig");
    object["spec"]["bootstrapSpec"]["namespace"] = json!("kube-system");
    object
}

/// Every policy that judges a change of a ScheduledMachine, for the definition under the other group.
fn install_policies(plane: &ControlPlane) {
    for policy in POLICIES {
        for mut document in read_yaml(&format!("deploy/policies/{policy}.yaml")) {
            let name = json!(format!("ratcheting.{}", document["metadata"]["name"].as_str().unwrap()));
            document["metadata"]["name"] = name.clone();
            if document["kind"] == "ValidatingAdmissionPolicy" {
                document["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"] = json!([GROUP]);
            } else {
                document["spec"]["policyName"] = name;
            }
            apply(plane, &document);
        }
    }
}

const POLICIES: [&str; 5] =
    ["embedded-namespace", "embedded-authorization", "kubeconfig-secret", "machine-keys", "lent-host"];

/// Waits until each policy refuses a change: of the account, or of the administrator where rights do not matter.
async fn policies_are_in_force(account: &Api<DynamicObject>, admin: &Api<DynamicObject>) {
    let name = "against-every-policy";
    for (change, says) in [
        (json!({"spec": {"bootstrapSpec": {"spec": {"x": "y"}}}}), "is not known here"),
        (json!({"spec": {"kubeconfigSecretRef": {"name": "other"}}}), "you may not get Secret other"),
        (json!({"metadata": {"annotations": {"5spot.finos.org/lent-host": "x"}}}), "leave it out"),
    ] {
        eventually(says, async || {
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            let answer = message(account.patch(name, &params, &Patch::Merge(&change)).await);
            answer.is_err_and(|text| text.contains(says))
        })
        .await;
    }
    for (path, value, says) in [
        (vec!["bootstrapSpec", "namespace"], json!("kube-system"), "is not the namespace"),
        (vec!["machineTemplate"], json!({"labels": {"metal3.io/x": "y"}}), "metal3.io/x is not allowed here"),
    ] {
        let mut fresh = crate::setup::machine("fresh");
        fresh["apiVersion"] = json!(format!("{GROUP}/v1alpha1"));
        *path.iter().fold(&mut fresh["spec"], |at, field| &mut at[*field]) = value;
        eventually(says, async || dry_run(admin, &fresh).await.is_err_and(|text| text.contains(says))).await;
    }
}

/// The negative control: the rules on `spec.schedule` without their look at the old value.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_look_at_the_old_value_the_server_would_refuse_our_own_disabling() {
    let (_, client, namespace) = cluster("naive").await;
    let group = "naive.example.com";
    let mut naive = under_group(json!(scheduled_machine_crd()), group);
    let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/schedule/x-kubernetes-validations";
    for rule in naive.pointer_mut(rules).unwrap().as_array_mut().unwrap() {
        let (kept, escape) = rule["rule"].as_str().unwrap().split_once(" || (oldSelf").unwrap();
        assert!(escape.contains("oldSelf.value().cron"));
        rule["rule"] = json!(kept);
        rule.as_object_mut().unwrap().remove("optionalOldSelf");
    }
    install(&client, &without_rules(&naive)).await;
    let api = machines_of(group, &client, &namespace).await;
    let mut object = crate::setup::machine("never");
    object["apiVersion"] = json!(format!("{group}/v1alpha1"));
    object["spec"]["schedule"] = json!({"daysOfWeek": [], "hoursOfDay": []});
    create(&api, &object).await.unwrap();
    install(&client, &naive).await;
    let mut enabled = true;
    eventually("the server refuses", async || {
        enabled = !enabled;
        let flip = Patch::Merge(json!({"spec": {"schedule": {"enabled": enabled}}}));
        let outcome = message(api.patch("never", &PatchParams::default(), &flip).await);
        outcome.is_err_and(|text| text.contains("never says when"))
    })
    .await;
}

/// Applies every change to every object and returns those that were refused.
async fn stuck(api: &Api<DynamicObject>, stored: &[(String, DynamicObject)]) -> Vec<String> {
    let mut stuck = Vec::new();
    for (row, object) in stored {
        let name = object.metadata.name.as_deref().unwrap();
        for (what, is_status, patch) in changes() {
            let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let outcome = if is_status {
                api.patch_status(name, &params, &patch).await
            } else {
                api.patch(name, &params, &patch).await
            };
            if let Err(text) = message(outcome) {
                stuck.push(format!("{row}: {what}: {text}"));
            }
        }
    }
    stuck
}

/// What must always be possible, in the order in which a machine is given back.
fn changes() -> [(&'static str, bool, Value); 5] {
    [
        ("a label", false, json!({"metadata": {"labels": {"touched": "true"}}})),
        ("the status", true, json!({"status": {"phase": "Error", "message": "see spec"}})),
        ("disabling", false, json!({"spec": {"schedule": {"enabled": false}}})),
        ("the kill switch", false, json!({"spec": {"killSwitch": true}})),
        ("removing the finalizer", false, json!({"metadata": {"finalizers": null}})),
    ]
}

/// Our definition under another group, so that the tests beside this one keep theirs.
fn under_group(mut crd: Value, group: &str) -> Value {
    crd["metadata"] = json!({"name": format!("scheduledmachines.{group}")});
    crd["spec"]["group"] = json!(group);
    crd["spec"]["names"]["shortNames"] = json!([]);
    crd["spec"]["names"]["categories"] = json!([]);
    crd
}

fn resource(group: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1alpha1", "ScheduledMachine"))
}

/// Access to the objects of such a definition, once it is served.
async fn machines_of(group: &str, client: &Client, namespace: &str) -> Api<DynamicObject> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource(group));
    eventually("the definition is served", async || api.list(&ListParams::default()).await.is_ok()).await;
    api
}

/// The same without anything that could refuse a value of the right type.
fn without_rules(crd: &Value) -> Value {
    fn strip(node: &mut Value) {
        if let Value::Object(map) = node {
            for keyword in [
                "x-kubernetes-validations",
                "x-kubernetes-list-type",
                "x-kubernetes-list-map-keys",
                "maxLength",
                "maxItems",
                "maxProperties",
                "minimum",
                "maximum",
                "enum",
            ] {
                map.remove(keyword);
            }
        }
        match node {
            Value::Object(map) => map.values_mut().for_each(strip),
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut loose = crd.clone();
    strip(loose.pointer_mut("/spec/versions/0/schema").unwrap());
    loose
}

async fn install(client: &Client, crd: &Value) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd["metadata"]["name"].as_str().unwrap();
    let params = PatchParams::apply("ratcheting").force();
    api.patch(name, &params, &Patch::Apply(crd)).await.unwrap();
}
