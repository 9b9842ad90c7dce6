//! How a ScheduledMachine may be deleted.

use super::patch;
use crate::setup::{cluster, create, kubectl, machine, machines, message};
use fivespot_testenv::{AuditEntry, eventually};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PropagationPolicy};
use serde_json::{Value, json};

/// The finalizer that the controller puts on a ScheduledMachine before it makes anything for it.
const OURS: &str = "5spot.finos.org/scheduledmachine";

fn with_finalizers(name: &str, finalizers: &[&str]) -> Value {
    let mut object = machine(name);
    object["metadata"]["finalizers"] = json!(finalizers);
    object
}

async fn delete(api: &Api<DynamicObject>, name: &str, params: &DeleteParams) -> Result<(), String> {
    message(api.delete(name, params).await).map(|_| ())
}

/// Options of a delete request, with a propagation policy or without.
fn propagating(propagation_policy: Option<PropagationPolicy>) -> DeleteParams {
    DeleteParams { propagation_policy, ..DeleteParams::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_has_something_to_tear_down_is_not_deleted_in_the_foreground() {
    let (plane, client, namespace) = cluster("foreground").await;
    let api = machines(&client, &namespace);
    let (foreground, background) = (DeleteParams::foreground(), DeleteParams::background());
    for (name, finalizers) in [
        ("lent", vec![OURS]),
        ("marked", vec!["foregroundDeletion", OURS]),
        ("going", vec![OURS]),
        ("inactive", vec![]),
        ("inactive-marked", vec!["foregroundDeletion"]),
    ] {
        create(&api, &with_finalizers(name, &finalizers)).await.unwrap();
    }
    let says = format!(
        "ScheduledMachine {namespace}/lent is not deleted in the foreground: its host would be reset before its pods \
         have left. Delete it in the background: kubectl delete --cascade=background. In Argo CD set the sync option \
         PrunePropagationPolicy=background, and to delete a whole Application its finalizer \
         resources-finalizer.argocd.argoproj.io/background"
    );
    eventually("the policy is in force", async || {
        delete(&api, "lent", &foreground.clone().dry_run()).await.is_err_and(|text| text.ends_with(&says))
    })
    .await;

    let refused = delete(&api, "lent", &foreground).await.unwrap_err();
    assert!(refused.ends_with(&says), "{refused}");
    // A server that is not told how goes by the finalizer of the object.
    let refused = delete(&api, "marked", &propagating(None)).await.unwrap_err();
    assert!(refused.contains("/marked is not deleted in the foreground"), "{refused}");
    // It leaves gracefully, and may not be hurried.
    delete(&api, "going", &background).await.unwrap();
    let refused = delete(&api, "going", &foreground).await.unwrap_err();
    assert!(refused.contains("/going is not deleted in the foreground"), "{refused}");
    let all = ListParams::default().fields("metadata.name=lent");
    let refused = message(api.delete_collection(&foreground, &all).await.map(|_| ())).unwrap_err();
    assert!(refused.ends_with(&says), "{refused}");
    let by_kubectl = ["delete", "sm", "-n", &namespace, "lent", "--cascade=foreground"];
    let refused = plane.kubectl(plane.management(), &by_kubectl, "").unwrap_err().to_string();
    assert!(refused.contains("is forbidden") && refused.contains(&says), "{refused}");
    for name in ["lent", "marked"] {
        assert_eq!(api.get(name).await.unwrap().metadata.deletion_timestamp, None);
    }

    // What has nothing in a cluster goes in any way.
    delete(&api, "inactive", &foreground).await.unwrap();
    delete(&api, "inactive-marked", &propagating(None)).await.unwrap();
    // And everything goes in the background, which also takes the mark off.
    delete(&api, "marked", &background).await.unwrap();
    assert_eq!(api.get("marked").await.unwrap().metadata.finalizers.unwrap_or_default(), [OURS]);
    message(api.delete_collection(&background, &all).await.map(|_| ())).unwrap();
    assert!(api.get("lent").await.unwrap().metadata.deletion_timestamp.is_some());
    for (name, propagation) in [("by-default", None), ("orphaning", Some(PropagationPolicy::Orphan))] {
        create(&api, &with_finalizers(name, &[OURS])).await.unwrap();
        delete(&api, name, &propagating(propagation)).await.unwrap();
    }
    // The older option, which kube has not.
    create(&api, &with_finalizers("older", &["foregroundDeletion", OURS])).await.unwrap();
    let path = format!("{}/older?orphanDependents=false", api.resource_url());
    kubectl(plane, &["delete", "--raw", &path]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_deleted_with_its_lent_machines() {
    let (plane, client, namespace) = cluster("doomed").await;
    let api = machines(&client, &namespace);
    create(&api, &with_finalizers("lent", &[OURS])).await.unwrap();
    eventually("the policy is in force", async || {
        delete(&api, "lent", &DeleteParams::foreground().dry_run()).await.is_err()
    })
    .await;
    kubectl(plane, &["delete", "namespace", &namespace, "--wait=false"]);
    eventually("the machine is being deleted", async || {
        api.get("lent").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    let is_it = |it: &AuditEntry| it.resource == "scheduledmachines" && it.namespace == namespace;
    let deletions: Vec<_> = plane.management().audit().unwrap().into_iter().filter(is_it).collect();
    let by_namespace = |it: &&AuditEntry| {
        it.verb == "deletecollection" && it.user.ends_with(":namespace-controller") && it.code == 200
    };
    assert!(deletions.iter().any(|it| by_namespace(&it)), "{deletions:?}");
    patch(&api, "lent", json!({"metadata": {"finalizers": null}})).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    eventually("the namespace is gone", async || namespaces.get_opt(&namespace).await.unwrap().is_none())
        .await;
}
