//! Who may have 5-Spot create what, and use what: the policies that ask for rights of the author.

use super::{RIGHTS_OF_AUTHORS, as_user, grant, grant_rules, patch};
use crate::setup::{cluster, create, dry_run, kubectl, machine, machines};
use fivespot_testenv::eventually;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn authors_get_from_5_spot_only_what_they_may_create_themselves() {
    let (plane, client, namespace) = cluster("tenant").await;
    let user = "tina";
    grant(plane, &namespace, user, "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, user, &namespace).await;
    for missing in &RIGHTS_OF_AUTHORS[1..] {
        eventually(&format!("the right to create {missing} is missing"), async || {
            let refused = create(&api, &machine("one")).await.unwrap_err();
            refused.contains(&format!("you may not create {missing} in namespace {namespace}"))
        })
        .await;
        grant(plane, &namespace, user, missing);
    }
    eventually("every right is there", async || create(&api, &machine("one")).await.is_ok()).await;

    // These rights hold in that namespace and in no other.
    let second = plane.management().fresh_namespace(&client, "tenant-second").await.unwrap();
    grant(plane, &second, user, "scheduledmachines.5spot.finos.org");
    let elsewhere = as_user(plane, user, &second).await;
    eventually("elsewhere the rights are missing", async || {
        let refused = create(&elsewhere, &machine("two")).await.unwrap_err();
        refused.contains(&format!(
            "you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io in namespace {second}"
        ))
    })
    .await;
}

/// Otto may write ScheduledMachines and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_change_what_5_spot_creates_or_uses_needs_no_right_to_it() {
    let (plane, client, namespace) = cluster("operator").await;
    let mut object = machine("one");
    object["spec"]["machineTemplate"] = json!({"labels": {"team": "blue"}});
    object["spec"]["kubeconfigSecretRef"] = json!({"name": "lab-admin"});
    object["metadata"]["finalizers"] = json!(["example.com/x"]);
    create(&machines(&client, &namespace), &object).await.unwrap();
    grant(plane, &namespace, "otto", "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, "otto", &namespace).await;
    eventually("otto may disable", async || {
        patch(&api, "one", json!({"spec": {"schedule": {"enabled": false}}})).await.is_ok()
    })
    .await;
    for change in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"spec": {"killSwitch": true, "priority": 7, "nodeTaints": [{"key": "a", "effect": "NoSchedule"}]}}),
        json!({"spec": {"killSwitch": false, "schedule": {"enabled": true}}}),
        json!({"metadata": {"finalizers": null}}),
    ] {
        patch(&api, "one", change.clone()).await.unwrap_or_else(|text| panic!("{change}: {text}"));
    }
    for (change, says) in [
        (json!({"bootstrapSpec": {"spec": {"x": "y"}}}), "you may not create k0sworkerconfigs"),
        (json!({"infrastructureSpec": {"spec": {"x": "y"}}}), "you may not create k0sworkerconfigs"),
        (json!({"machineTemplate": {"labels": {"team": "red"}}}), "you may not create machines."),
        (json!({"machineTemplate": {"annotations": {"note": "x"}}}), "you may not create machines."),
        (json!({"machineTemplate": null}), "you may not create machines."),
        (json!({"kubeconfigSecretRef": {"name": "other"}}), "you may not get Secret other"),
        (json!({"kubeconfigSecretRef": {"key": "other"}}), "you may not get Secret lab-admin"),
    ] {
        let refused = patch(&api, "one", json!({"spec": change})).await.expect_err(says);
        assert!(refused.contains(says), "{change}: {refused}");
    }
    // Who may create Machines may change their labels, and needs no right to the kinds that stay as they are.
    grant(plane, &namespace, "otto", "machines.cluster.x-k8s.io");
    eventually("otto may change the labels of the Machine", async || {
        patch(&api, "one", json!({"spec": {"machineTemplate": {"labels": {"team": "red"}}}})).await.is_ok()
    })
    .await;
    // To use another Secret a right is needed, to use none it is not.
    patch(&api, "one", json!({"spec": {"kubeconfigSecretRef": null}})).await.unwrap();
}

/// The attack: mallory may write ScheduledMachines and may not read Secrets, and has the controller use one.
#[tokio::test(flavor = "multi_thread")]
async fn the_controller_uses_no_secret_for_an_author_who_may_not_get_it() {
    let (plane, client, namespace) = cluster("secrets").await;
    let user = "mallory-of-secrets";
    for resource in RIGHTS_OF_AUTHORS {
        grant(plane, &namespace, user, resource);
    }
    let api = as_user(plane, user, &namespace).await;
    let with_secret = |name: &str, secret: &str| {
        let mut object = machine(name);
        object["spec"]["kubeconfigSecretRef"] = json!({"name": secret});
        object
    };
    eventually("no Secret is named", async || create(&api, &machine("one")).await.is_ok()).await;
    eventually("the policy is in force", async || dry_run(&api, &with_secret("bad", "admin")).await.is_err())
        .await;
    let refused = create(&api, &with_secret("bad", "admin")).await.unwrap_err();
    let says = format!(
        "spec.kubeconfigSecretRef.name: you may not get Secret admin in namespace {namespace}, so 5-Spot does not use it \
         for you: ask for that right, or leave kubeconfigSecretRef out, and 5-Spot uses the Secret lab-kubeconfig, which \
         Cluster API writes"
    );
    assert!(refused.ends_with(&says), "{refused}");
    let set = |secret: &str| json!({"spec": {"kubeconfigSecretRef": {"name": secret}}});
    patch(&api, "one", set("admin")).await.unwrap_err();
    // Also by the name that is used without a reference.
    dry_run(&api, &with_secret("bad", "lab-kubeconfig")).await.unwrap_err();

    // Neither a right to other Secrets, nor to all of them in another namespace, nor to do other things with this one.
    let second = plane.management().fresh_namespace(&client, "secrets-second").await.unwrap();
    let rule = |verbs: &[&str], names: &[&str]| json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs, "resourceNames": names});
    grant_rules(plane, &second, user, &[rule(&["*"], &[])]);
    let other_verbs = rule(&["create", "update", "patch", "delete", "list", "watch"], &["admin"]);
    grant_rules(plane, &namespace, user, &[other_verbs, rule(&["get"], &["mine"])]);
    eventually("a Secret of their own", async || create(&api, &with_secret("two", "mine")).await.is_ok())
        .await;
    for secret in ["admin", "mine2", "min"] {
        let refused = dry_run(&api, &with_secret("bad", secret)).await.expect_err(secret);
        assert!(refused.contains(&format!("you may not get Secret {secret} ")), "{refused}");
    }
    let refused = patch(&api, "two", set("admin")).await.unwrap_err();
    assert!(refused.contains("you may not get Secret admin"), "{refused}");
    grant_rules(plane, &namespace, user, &[rule(&["get"], &["admin"])]);
    eventually("the right is there", async || patch(&api, "two", set("admin")).await.is_ok()).await;
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
    for resource in RIGHTS_OF_AUTHORS {
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
