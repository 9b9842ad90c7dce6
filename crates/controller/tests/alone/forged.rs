//! A tenant who may write Machines in a namespace tries to have a Node emptied that is not theirs.

use crate::audit::{is_write, requests};
use crate::harness::{Controller, OPEN, World, is, message};
use crate::{end, plane, worlds};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{Fault, Identity, eventually};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

const TENANT: &str = "mallory";

/// A Node of somebody else, by its name.
const VICTIM: &str = "control-plane-1";

/// The played Cluster API deletes the Node that a Machine names, as the real one does where it reaches it. This keeps it.
const KEPT: &str = "example.com/kept-by-a-test";

fn provider_id(victim: &str) -> String {
    format!("baremetal://{victim}")
}

/// Lets the tenant write Machines of a namespace, also their status, and nothing else.
fn grant(world: &World) {
    let rules = json!([{
        "apiGroups": ["cluster.x-k8s.io"], "resources": ["machines", "machines/status"], "verbs": ["get", "patch"],
    }]);
    let (group, metadata) =
        ("rbac.authorization.k8s.io", json!({"name": "machines", "namespace": world.namespace}));
    let subjects = json!([{"apiGroup": group, "kind": "User", "name": TENANT}]);
    let reference = json!({"apiGroup": group, "kind": "Role", "name": "machines"});
    for object in [
        json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata, "roleRef": reference,
            "subjects": subjects,
        }),
    ] {
        let apply = ["apply", "-f", "-"];
        world.plane.kubectl(world.plane.management(), &apply, &object.to_string()).unwrap();
    }
}

/// Points the Machine `m` to the victim, as the tenant.
async fn forge(world: &World, victim: &str) {
    let client: Client = world.plane.management().client_as(&Identity::user(TENANT)).await.unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine"));
    let machines: Api<DynamicObject> = Api::namespaced_with(client, &world.namespace, &resource);
    let params = PatchParams::default();
    eventually("the tenant writes the providerID", async || {
        let patch = Patch::Merge(json!({"spec": {"providerID": provider_id(victim)}}));
        machines.patch("m", &params, &patch).await.is_ok()
    })
    .await;
    let patch = Patch::Merge(json!({"status": {"nodeRef": {"name": victim}}}));
    machines.patch_status("m", &params, &patch).await.unwrap();
}

/// A Node with a pod, whose labels and annotations the test chooses.
async fn place(world: &World, victim: &str, labels: Value, annotations: Value) {
    let node = json!({
        "metadata": {"name": victim, "labels": labels, "annotations": annotations, "finalizers": [KEPT]},
        "spec": {"providerID": provider_id(victim)},
    });
    let node = serde_json::from_value(node).unwrap();
    world.nodes().create(&PostParams::default(), &node).await.unwrap();
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": Timestamp::now(), "lastTransitionTime": Timestamp::now(),
    }]}});
    world.nodes().patch_status(victim, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    let pod = json!({
        "metadata": {"name": format!("on-{victim}")},
        "spec": {
            "nodeName": victim, "containers": [{"name": "main", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        },
    });
    world.workload_namespace().await;
    world.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

/// A machine with taints and programs, so that there is something to write to a Node at once.
async fn make(world: &World) {
    world.hosts.set("m", Fault::NeverJoins);
    world
        .create("m", OPEN, |spec| {
            spec["nodeTaints"] = json!([{"key": "away", "effect": "NoExecute"}]);
            spec["killIfCommands"] = json!(["java"]);
        })
        .await;
    eventually("the Machine is there", async || {
        world.objects("Machine").get_opt("m").await.unwrap().is_some()
    })
    .await;
}

fn has_our_taint(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == "away")
}

/// Every way out is taken: the kill switch, then the deletion. Not one of them writes to a Node or a pod.
async fn leave(world: &World, victim: &str, since: Timestamp) {
    world.patch("m", json!({"spec": {"killSwitch": true}})).await;
    eventually("the Machine is gone", async || {
        world.objects("Machine").get_opt("m").await.unwrap().is_none()
    })
    .await;
    world.delete("m", &DeleteParams::default()).await;
    world.until_gone(&world.machines(), "m").await;
    let is_of_a_node = |resource: &str| resource == "nodes" || resource == "pods";
    let written: Vec<String> = requests(world.plane.management(), since)
        .into_iter()
        .filter(|it| is_write(it) && is_of_a_node(&it.resource))
        .map(|it| format!("{} {} {}", it.verb, it.resource, it.name))
        .collect();
    assert!(written.is_empty(), "{written:?}");
    let node = world.nodes().get(victim).await.unwrap();
    assert_eq!((node.spec.as_ref().unwrap().unschedulable, has_our_taint(&node)), (None, false));
    let pod = world.pods().get(&format!("on-{victim}")).await.unwrap();
    assert_eq!(pod.metadata.deletion_timestamp, None);
    give_up(world, victim).await;
}

async fn give_up(world: &World, victim: &str) {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    world.nodes().patch(victim, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_no_administrator_named_reaches_nothing_in_the_management_cluster() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "unnamed").await;
    grant(&world);
    place(&world, VICTIM, json!({}), json!({})).await;
    let since = Timestamp::now();
    let controller =
        Controller::start(plane, "unnamed", &["--management-cluster-namespaces=elsewhere,another"]);
    make(&world).await;
    forge(&world, VICTIM).await;
    let unreachable = |it: &ScheduledMachine| is(it, "WorkloadReachable", "False", "NoKubeconfigSecret");
    let machine = world.until("m", "without a workload cluster", unreachable).await;
    println!("{}", message(&machine));
    let advice =
        format!("add namespace {} to --management-cluster-namespaces of the controller", world.namespace);
    assert!(message(&machine).contains(&advice), "{}", message(&machine));
    leave(&world, VICTIM, since).await;
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_names_the_node_of_another_writes_nothing_to_it() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "forged").await;
    grant(&world);
    let owned = |machine: &str| {
        json!({
            "cluster.x-k8s.io/machine": machine,
            "cluster.x-k8s.io/cluster-name": "lab",
            "cluster.x-k8s.io/cluster-namespace": world.namespace,
        })
    };
    let control_plane = json!({"node-role.kubernetes.io/control-plane": ""});
    let controller = Controller::start(plane, "forged", &[]);
    let since = Timestamp::now();
    for (number, (labels, annotations, reason, says)) in [
        (json!({}), json!({}), "Provisioning", "Waiting until Cluster API marks Node victim-0"),
        (json!({}), owned("other"), "NodeOfOther", "which belongs to Machine"),
        // Of a Cluster of the same name elsewhere.
        (
            json!({}),
            json!({"cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "elsewhere"}),
            "NodeOfOther",
            "which belongs to Machine elsewhere/m",
        ),
        // Whoever marked it: no machine is lent that runs the control plane.
        (control_plane, owned("m"), "NodeOfOther", "which belongs to the control plane"),
    ]
    .into_iter()
    .enumerate()
    {
        let victim = format!("victim-{number}");
        place(&world, &victim, labels, annotations).await;
        make(&world).await;
        forge(&world, &victim).await;
        let machine =
            world.until("m", says, |it| is(it, "Ready", "False", reason) && message(it).contains(says)).await;
        println!("{}", message(&machine));
        leave(&world, &victim, since).await;
    }
    // The same Node, marked as that of this Machine by whoever may write Nodes, is lent: the test can fail.
    place(&world, "lent", json!({}), owned("m")).await;
    make(&world).await;
    forge(&world, "lent").await;
    world.until_phase("m", "Active").await;
    assert!(has_our_taint(&world.nodes().get("lent").await.unwrap()));
    give_up(&world, "lent").await;
    end(&controller);
}
