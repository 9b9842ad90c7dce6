//! What is made when the window opens, and what others can wait for.

use crate::harness::{CLOSED, OPEN, is};
use crate::look::{CORDONED_BY, OURS, can_be_waited_for};
use crate::stage::{scenarios, world};
use fivespot_testenv::Fault;
use serde_json::{Value, json};

scenarios![
    what_is_created_carries_our_name_and_is_bounded_also_without_us,
    kubectl_wait_works_in_and_out_of_the_window,
];

async fn what_is_created_carries_our_name_and_is_bounded_also_without_us() {
    let world = world().await;
    let change = |spec: &mut Value| {
        spec["nodeDrainTimeout"] = json!("0s");
        spec["gracefulShutdownTimeout"] = json!("90s");
        let labels = json!({"team": "blue"});
        spec["machineTemplate"] = json!({"labels": labels, "annotations": {"note": "kept"}});
    };
    let machine = world.lend("named", change).await;
    let capi = world.capi_machine("named").await;
    let spec = &capi.data["spec"];
    if crate::VERSION == "v1beta1" {
        assert_eq!(
            (&spec["nodeDrainTimeout"], &spec["nodeVolumeDetachTimeout"]),
            (&json!("1s"), &json!("1m30s"))
        );
        assert_eq!(spec["infrastructureRef"]["apiVersion"], "infrastructure.cluster.x-k8s.io/v1beta2");
    } else {
        let expected = json!({"nodeDrainTimeoutSeconds": 1, "nodeVolumeDetachTimeoutSeconds": 90});
        let deletion = spec["deletion"].as_object().unwrap();
        let ours = |key: &&String| expected.get(key.as_str()).is_some();
        let found: serde_json::Map<_, _> = deletion
            .iter()
            .filter(|(key, _)| ours(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(Value::Object(found), expected);
        assert_eq!(spec["infrastructureRef"]["apiGroup"], "infrastructure.cluster.x-k8s.io");
    }
    assert_eq!(capi.metadata.labels.as_ref().unwrap()["team"], "blue");
    assert_eq!(capi.metadata.annotations.as_ref().unwrap()["note"], "kept");
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        let object = world.objects(kind).get("named").await.unwrap();
        let labels = object.metadata.labels.unwrap();
        assert_eq!(labels["cluster.x-k8s.io/cluster-name"], "lab");
        assert_eq!(labels["5spot.finos.org/scheduled-machine"], "named");
        let owners = object.metadata.owner_references.unwrap();
        let ours = owners.iter().find(|owner| owner.kind == "ScheduledMachine").unwrap();
        assert_eq!(Some(&ours.uid), machine.metadata.uid.as_ref());
        assert_eq!(ours.controller, Some(kind == "Machine"), "{kind}");
        assert_eq!(ours.block_owner_deletion, None, "{kind}");
    }
    assert_eq!(
        world.objects("RemoteMachine").get("named").await.unwrap().data["spec"]["address"],
        world.hosts.address("named")
    );

    // No time for a drain means none, ours or another's.
    world.pod("named", "named-web", |_| {}).await;
    world.close("named").await;
    world.until_phase("named", "Inactive").await;
    world.nothing_is_left("named").await;
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("named-web", ""), nobody);
    assert_eq!(world.pod_deletions("named-web", OURS), 0);
    assert!(
        !world.has_event("named", "NodeDraining").await && world.has_event("named", "MachineDeleted").await
    );
}

async fn kubectl_wait_works_in_and_out_of_the_window() {
    let world = world().await;
    let wait = async |seconds: &str| {
        let timeout = format!("--timeout={seconds}s");
        world.kubectl(&["wait", "--for=condition=Ready", "sm/waited", &timeout], "").await
    };
    world.create("waited", CLOSED, |_| {}).await;
    wait("30").await.unwrap();
    world.hosts.set("waited", Fault::NeverJoins);
    world.open("waited").await;
    let pending = world.until_reason("waited", "Provisioning").await;
    can_be_waited_for(&pending);
    let refused = wait("1").await.unwrap_err();
    assert!(refused.contains("timed out"), "{refused}");
    world.hosts.reset("waited");
    wait("60").await.unwrap();
    assert_eq!(world.status("waited").await.phase.as_deref(), Some("Active"));
    assert_eq!(world.node_annotation("waited", CORDONED_BY).await, None);
    let schedule = json!({"cron": OPEN, "enabled": false});
    world.patch("waited", json!({"spec": {"schedule": schedule}})).await;
    world.until("waited", "on its way out", |it| !is(it, "Ready", "True", "NodeReady")).await;
    wait("60").await.unwrap();
    assert_eq!(world.status("waited").await.phase.as_deref(), Some("Disabled"));
}
