//! The Secret that leads to a workload cluster: replaced, spoiled, taken away, and written by somebody who means ill.

use crate::harness::{CLUSTER, OPEN, World, is, message};
use crate::{plane, worlds};
use fivespot_api::ScheduledMachine;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::fs;

fn secrets(world: &World) -> Api<Secret> {
    Api::namespaced(world.management.clone(), &world.namespace)
}

/// The name of the Secret that Cluster API makes.
fn usual() -> String {
    format!("{CLUSTER}-kubeconfig")
}

/// The kubeconfig of the workload cluster.
fn good(world: &World) -> Value {
    let args = ["config", "view", "--raw", "-o", "json"];
    let text = world.plane.kubectl(world.plane.workload(), &args, "").unwrap();
    serde_json::from_str(&text).unwrap()
}

async fn write(world: &World, kubeconfig: &str) {
    let patch = Patch::Merge(json!({"data": null, "stringData": {"value": kubeconfig}}));
    secrets(world).patch(&usual(), &PatchParams::default(), &patch).await.unwrap();
}

async fn until_reason(world: &World, status: &str, reason: &str) -> ScheduledMachine {
    let what = format!("{status}/{reason}");
    world.until("m", &what, |it| is(it, "WorkloadReachable", status, reason)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_secret_is_followed_and_the_management_cluster_never_takes_its_place() {
    let (plane, _turn) = plane().await;
    let world = worlds::linked(plane, "secret").await;
    world.create("m", OPEN, |_| {}).await;
    world.until_phase("m", "Active").await;
    // Another kubeconfig that is as good.
    let mut other = good(&world);
    other["clusters"][0]["cluster"]["server"] =
        json!(other["clusters"][0]["cluster"]["server"].as_str().unwrap().replace("127.0.0.1", "localhost"));
    let since = jiff::Timestamp::now();
    write(&world, &other.to_string()).await;
    let asked = || {
        let entries = plane.workload().audit().unwrap().into_iter();
        entries.filter(|it| it.at >= since && it.user_agent.starts_with("5spot-controller/")).count()
    };
    fivespot_testenv::eventually("the new one is used", async || asked() > 0).await;
    world.until_phase("m", "Active").await;

    // One that is not a kubeconfig, and those of somebody who means ill.
    write(&world, "neither fish nor fowl").await;
    let machine = until_reason(&world, "False", "KubeconfigSecretInvalid").await;
    assert!(is(&machine, "Ready", "False", "WorkloadUnreachable"), "{}", message(&machine));
    write(&world, &good(&world).to_string()).await;
    world.until_phase("m", "Active").await;
    let trap = plane.management().kubeconfig_path().with_file_name("trap");
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "touch",
        "args": [trap.to_str().unwrap()], "interactiveMode": "Never",
    });
    let file = json!(plane.workload().kubeconfig_path().to_str().unwrap());
    for (what, value) in [("exec", exec), ("tokenFile", file.clone()), ("client-certificate", file.clone())] {
        let mut evil = good(&world);
        evil["users"][0]["user"][what] = value;
        write(&world, &evil.to_string()).await;
        let machine = until_reason(&world, "False", "KubeconfigSecretInvalid").await;
        assert!(message(&machine).contains("names a program or a file"), "{what}: {}", message(&machine));
        write(&world, &good(&world).to_string()).await;
        world.until_phase("m", "Active").await;
    }
    let mut evil = good(&world);
    evil["clusters"][0]["cluster"]["certificate-authority"] = file;
    write(&world, &evil.to_string()).await;
    let machine = until_reason(&world, "False", "KubeconfigSecretInvalid").await;
    assert!(message(&machine).contains("names a file"), "{}", message(&machine));
    assert!(!fs::exists(trap).unwrap(), "a program of a Secret was run");
    write(&world, &good(&world).to_string()).await;
    world.until_phase("m", "Active").await;
    // A server that no administrator has listed: it is not even connected to.
    let mut evil = good(&world);
    evil["clusters"][0]["cluster"]["server"] = json!("https://203.0.113.9:6443/somewhere");
    write(&world, &evil.to_string()).await;
    let machine = until_reason(&world, "False", "KubeconfigSecretInvalid").await;
    let says = "its server https://203.0.113.9:6443 is not one of --workload-api-servers of the controller";
    assert!(message(&machine).contains(says), "{}", message(&machine));

    // Taken away: the management cluster is another one.
    secrets(&world).delete(&usual(), &DeleteParams::default()).await.unwrap();
    let machine = until_reason(&world, "False", "KubeconfigSecretNotFound").await;
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Pending"));
    fivespot_testenv::create_kubeconfig_secret(plane, &world.namespace, CLUSTER).await.unwrap();
    world.until_phase("m", "Active").await;
    world.close("m").await;
    world.until_phase("m", "Inactive").await;
    world.nothing_is_left("m").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_text_of_a_secret_is_shown_and_none_ends_the_watch_of_it() {
    const SECRET: &str = "d0-not-sh0w";
    let (plane, _turn) = plane().await;
    let world = worlds::linked(plane, "unshown").await;
    world.create("m", OPEN, |_| {}).await;
    world.until_phase("m", "Active").await;
    let token = format!("{SECRET}\n{SECRET}");
    let changes: [(&str, &str, Value); 3] = [
        ("/users/0/user/token", "characters that cannot be sent", json!(token)),
        ("/current-context", "names no context", json!(SECRET)),
        ("/contexts/0/context/cluster", "names no context", json!(SECRET)),
    ];
    for (path, text, value) in changes {
        let mut bad = good(&world);
        let (parent, name) = path.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[name] = value;
        write(&world, &bad.to_string()).await;
        let machine = until_reason(&world, "False", "KubeconfigSecretInvalid").await;
        assert!(message(&machine).contains(text), "{path}: {}", message(&machine));
        let shown = serde_json::to_string(&machine).unwrap();
        assert!(!shown.contains(SECRET), "{path}: {shown}");
        write(&world, &good(&world).to_string()).await;
        world.until_phase("m", "Active").await;
    }
    let events = world.events("m").await;
    assert!(!events.iter().any(|event| event.contains(SECRET)), "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_named_and_not_there_is_waited_for() {
    let (plane, _turn) = plane().await;
    // Its Cluster would be the management cluster, were no Secret named.
    let world = worlds::own(plane, "named").await;
    let named = json!({"name": "elsewhere", "key": "config"});
    world.create("m", OPEN, |spec| spec["kubeconfigSecretRef"] = named).await;
    let machine = until_reason(&world, "False", "KubeconfigSecretRefNotFound").await;
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Pending"));
    let nodes = world.nodes().get(&world.hosts.node_name("m")).await.unwrap();
    assert!(nodes.spec.unwrap().unschedulable.is_none(), "its Node is not touched");

    let args = ["config", "view", "--raw", "-o", "json"];
    let kubeconfig = plane.kubectl(plane.management(), &args, "").unwrap();
    let secret = json!({"metadata": {"name": "elsewhere"}, "stringData": {"config": kubeconfig}});
    let secret = serde_json::from_value(secret).unwrap();
    secrets(&world).create(&PostParams::default(), &secret).await.unwrap();
    let machine = world.until_phase("m", "Active").await;
    assert!(is(&machine, "WorkloadReachable", "True", "KubeconfigSecret"));
}
