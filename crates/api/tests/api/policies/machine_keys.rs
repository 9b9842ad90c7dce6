//! Which labels and annotations 5-Spot puts on a Machine.

use super::patch;
use crate::setup::{cluster, create, dry_run, kubectl, machine, machines};
use fivespot_testenv::{ControlPlane, eventually};
use serde_json::{Value, json};

/// Annotates the definition as an administrator does: `PREFIX=allowed` or `PREFIX-`.
fn annotate(plane: &ControlPlane, text: &str) {
    let key = format!("machine-keys.5spot.finos.org/{text}");
    kubectl(plane, &["annotate", "--overwrite", "crd", "scheduledmachines.5spot.finos.org", &key]);
}

fn with_keys(name: &str, map: &str, keys: &Value) -> Value {
    let mut object = machine(name);
    object["spec"]["machineTemplate"] = json!({map: keys});
    object
}

/// The attack: by an annotation of Metal3, the Machine takes a host that belongs to others.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_other_controllers_act_on_is_refused_until_its_prefix_is_allowed() {
    let (plane, client, namespace) = cluster("keys").await;
    let api = machines(&client, &namespace);
    // No other test allows these prefixes.
    let attack = |map| with_keys("bad", map, &json!({"metal3.io/BareMetalHost": "theirs", "note": "x"}));
    for map in ["labels", "annotations"] {
        eventually("the policy is in force", async || dry_run(&api, &attack(map)).await.is_err()).await;
        let refused = create(&api, &attack(map)).await.unwrap_err();
        let says = format!(
            "spec.machineTemplate.{map}: metal3.io/BareMetalHost is not allowed here, because other controllers may act on \
             keys with this prefix: use a key without a prefix, or ask an administrator to run \"kubectl annotate crd \
             scheduledmachines.5spot.finos.org machine-keys.5spot.finos.org/metal3.io=allowed\""
        );
        assert!(refused.ends_with(&says), "{refused}");
        create(&api, &with_keys(&format!("plain-{map}"), map, &json!({"note": "x"}))).await.unwrap();
    }

    annotate(plane, "keys.example.net=allowed");
    annotate(plane, "denied.example.net=false");
    for map in ["labels", "annotations"] {
        let allowed = with_keys(&format!("allowed-{map}"), map, &json!({"keys.example.net/rack": "r12"}));
        eventually("the prefix is allowed", async || create(&api, &allowed).await.is_ok()).await;
        for key in [
            "example.net/rack",
            "sub.keys.example.net/rack",
            "xkeys.example.net/rack",
            "keys.example.net.example.org/rack",
            "denied.example.net/rack",
        ] {
            let refused = dry_run(&api, &with_keys("bad", map, &json!({key: "r12"}))).await.expect_err(key);
            assert!(refused.contains(&format!("{key} is not allowed here")), "{refused}");
        }
        // One key that is allowed does not let another pass.
        let both = json!({"keys.example.net/rack": "r12", "metal3.io/BareMetalHost": "theirs"});
        dry_run(&api, &with_keys("bad", map, &both)).await.unwrap_err();
    }
    // What the schema reserves cannot be allowed.
    annotate(plane, "cluster.x-k8s.io=allowed");
    let paused = with_keys("bad", "annotations", &json!({"cluster.x-k8s.io/paused": ""}));
    let refused = create(&api, &paused).await.unwrap_err();
    assert!(refused.contains("cluster.x-k8s.io/paused is reserved"), "{refused}");
    annotate(plane, "cluster.x-k8s.io-");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_a_key_that_is_not_allowed_any_more_can_still_be_changed() {
    let (plane, client, namespace) = cluster("old-keys").await;
    let api = machines(&client, &namespace);
    annotate(plane, "old.example.net=allowed");
    for map in ["labels", "annotations"] {
        let mut old = with_keys(map, map, &json!({"old.example.net/rack": "r12"}));
        old["metadata"]["finalizers"] = json!(["example.com/x"]);
        eventually("the prefix is allowed", async || create(&api, &old).await.is_ok()).await;
    }
    annotate(plane, "old.example.net-");
    let after = with_keys("after", "labels", &json!({"old.example.net/rack": "r12"}));
    eventually("the prefix is not allowed", async || dry_run(&api, &after).await.is_err()).await;
    for map in ["labels", "annotations"] {
        let template = |keys: Value| json!({"spec": {"machineTemplate": {map: keys}}});
        for change in [
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"spec": {"schedule": {"enabled": false}}}),
            json!({"spec": {"killSwitch": true}}),
            json!({"spec": {"bootstrapSpec": {"spec": {"x": "y"}}}}),
            template(json!({"note": "x"})),
            json!({"metadata": {"finalizers": null}}),
        ] {
            patch(&api, map, change.clone()).await.unwrap_or_else(|text| panic!("{map}: {change}: {text}"));
        }
        for keys in [json!({"old.example.net/rack": "r13"}), json!({"old.example.net/other": "r12"})] {
            let refused = patch(&api, map, template(keys.clone())).await.expect_err("not allowed any more");
            assert!(refused.contains("is not allowed here"), "{keys}: {refused}");
        }
        // Once removed it is new.
        patch(&api, map, template(json!({"old.example.net/rack": null}))).await.unwrap();
        patch(&api, map, template(json!({"old.example.net/rack": "r12"}))).await.unwrap_err();
    }
}
