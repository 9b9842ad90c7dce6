//! Who may have 5-Spot create what: the policies that ask for rights of the author.

use super::{as_user, grant, patch};
use crate::setup::{cluster, create, kubectl, machine, machines};
use fivespot_testenv::eventually;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_user_gets_from_5_spot_only_what_he_could_create_himself() {
    let (plane, client, namespace) = cluster("tenant").await;
    let user = "tina";
    grant(plane, &namespace, user, "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, user, &namespace).await;

    eventually("he may write the object, but not what it embeds", async || {
        let refused = create(&api, &machine("one")).await.unwrap_err();
        refused.contains("you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io")
    })
    .await;

    grant(plane, &namespace, user, "k0sworkerconfigs.bootstrap.cluster.x-k8s.io");
    eventually("the missing right is the other one", async || {
        let refused = create(&api, &machine("one")).await.unwrap_err();
        refused.contains("you may not create remotemachines.infrastructure.cluster.x-k8s.io")
    })
    .await;

    grant(plane, &namespace, user, "remotemachines.infrastructure.cluster.x-k8s.io");
    eventually("he may", async || create(&api, &machine("one")).await.is_ok()).await;

    // The rights to the embedded kinds hold in that namespace and in no other.
    let second = plane.management().fresh_namespace(&client, "tenant-second").await.unwrap();
    grant(plane, &second, user, "scheduledmachines.5spot.finos.org");
    let elsewhere = as_user(plane, user, &second).await;
    eventually("he may not, elsewhere", async || {
        let refused = create(&elsewhere, &machine("two")).await.unwrap_err();
        refused.contains(&format!(
            "you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io in namespace {second}"
        ))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_change_the_embedded_specs_needs_no_right_to_them() {
    let (plane, client, namespace) = cluster("operator").await;
    create(&machines(&client, &namespace), &machine("one")).await.unwrap();
    grant(plane, &namespace, "otto", "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, "otto", &namespace).await;
    eventually("otto may disable", async || {
        patch(&api, "one", json!({"spec": {"schedule": {"enabled": false}}})).await.is_ok()
    })
    .await;
    patch(&api, "one", json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/x"]}}))
        .await
        .unwrap();
    patch(&api, "one", json!({"metadata": {"finalizers": null}})).await.unwrap();
    for part in ["bootstrapSpec", "infrastructureSpec"] {
        let refused = patch(&api, "one", json!({"spec": {part: {"spec": {"x": "y"}}}})).await.unwrap_err();
        assert!(refused.contains("you may not create"), "{part}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_known_any_more_is_refused_but_what_runs_can_be_given_back() {
    let (plane, client, namespace) = cluster("unknown").await;
    let api = machines(&client, &namespace);
    let of_kind = |name: &str| {
        let mut object = machine(name);
        object["spec"]["bootstrapSpec"]["kind"] = json!("OddConfig");
        object
    };
    let annotate = |line: &str| {
        let key = format!("embedded.5spot.finos.org/OddConfig.bootstrap.cluster.x-k8s.io{line}");
        kubectl(plane, &["annotate", "crd", "scheduledmachines.5spot.finos.org", &key]);
    };
    annotate("=oddconfigs");
    eventually("the kind is known", async || create(&api, &of_kind("before")).await.is_ok()).await;
    annotate("-");
    let mut tries = 0;
    eventually("the kind is unknown", async || {
        tries += 1;
        let refused = create(&api, &of_kind(&format!("after-{tries}"))).await;
        refused
            .is_err_and(|message| message.contains("OddConfig.bootstrap.cluster.x-k8s.io is not known here"))
    })
    .await;
    patch(&api, "before", json!({"spec": {"schedule": {"enabled": false}}})).await.unwrap();
    patch(&api, "before", json!({"metadata": {"finalizers": ["example.com/x"]}})).await.unwrap();
    patch(&api, "before", json!({"metadata": {"finalizers": null}})).await.unwrap();
    patch(&api, "before", json!({"spec": {"bootstrapSpec": {"spec": {"x": "y"}}}})).await.unwrap_err();
}

/// Whoever could write it could have any Node of the workload cluster drained whose machine id they know.
#[tokio::test(flavor = "multi_thread")]
async fn the_host_that_was_lent_is_the_word_of_the_controller_alone() {
    let (plane, _, namespace) = cluster("lent-host").await;
    let user = "mallory";
    for resource in [
        "scheduledmachines.5spot.finos.org",
        "k0sworkerconfigs.bootstrap.cluster.x-k8s.io",
        "remotemachines.infrastructure.cluster.x-k8s.io",
    ] {
        grant(plane, &namespace, user, resource);
    }
    let api = as_user(plane, user, &namespace).await;
    eventually("a machine can be created", async || create(&api, &machine("one")).await.is_ok()).await;
    let host = r#"{"nodeName":"control-plane-1","machineID":"m","systemUUID":"s"}"#;
    let note = |host: Value| json!({"metadata": {"annotations": {"5spot.finos.org/lent-host": host}}});
    let refused = patch(&api, "one", note(json!(host))).await.unwrap_err();
    assert!(refused.contains("5spot.finos.org/lent-host") && refused.contains("leave it out"), "{refused}");
    let mut forged = machine("two");
    forged["metadata"]["annotations"] = json!({"5spot.finos.org/lent-host": host});
    assert!(create(&api, &forged).await.unwrap_err().contains("5spot.finos.org/lent-host"));
    // The controller, and whoever may write status, as for a restore.
    let admin = machines(&plane.management().client().await.unwrap(), &namespace);
    patch(&admin, "one", note(json!(host))).await.unwrap();
    // What stands there stays, and may be left out.
    patch(&api, "one", json!({"spec": {"priority": 51}})).await.unwrap();
    patch(&api, "one", note(Value::Null)).await.unwrap();
}
