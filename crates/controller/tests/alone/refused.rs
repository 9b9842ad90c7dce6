//! A create that is refused because the name is taken. The watch shows such an object in time nearly always, so the
//! controller is kept from watching infrastructure objects here.

use crate::harness::{CLOSED, Controller, OPEN, World, from_root, is, message};
use crate::{end, plane, worlds};
use fivespot_testenv::{ControlPlane, eventually};
use kube::api::PostParams;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A failure is tried again after 30 seconds; a refusal must be looked into long before.
const AT_ONCE: Duration = Duration::from_secs(15);

/// The controller may read and write infrastructure objects, and neither list nor watch them, until this is dropped.
struct Blind(&'static ControlPlane);

impl Blind {
    /// It may do no more than this with them.
    fn but_for(plane: &'static ControlPlane, verbs: &[&str]) -> Self {
        let verbs = json!([{"op": "replace", "path": "/rules/1/verbs", "value": verbs}]);
        let role =
            ["patch", "clusterrole", "5spot-controller-k0smotron", "--type=json", "-p", &verbs.to_string()];
        plane.kubectl(plane.management(), &role, "").unwrap();
        let list = ["auth", "can-i", "list", "remotemachines.infrastructure.cluster.x-k8s.io", "-A"];
        let list = [&list[..], &["--as=system:serviceaccount:5spot-system:5spot-controller"]].concat();
        // kubectl ends with an error when the answer is no.
        while plane.kubectl(plane.management(), &list, "").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        Self(plane)
    }
}

impl Drop for Blind {
    fn drop(&mut self) {
        let file = from_root("deploy/controller/providers.yaml");
        let _ = self.0.kubectl(
            self.0.management(),
            &["apply", "--server-side", "--force-conflicts", "-f", file.to_str().unwrap()],
            "",
        );
    }
}

/// An infrastructure object of that name, which was there before.
async fn infrastructure(world: &World, name: &str, owners: Value) -> Option<String> {
    let object = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "RemoteMachine",
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": world.remote_machine(name),
    });
    let object = serde_json::from_value(object).unwrap();
    world.objects("RemoteMachine").create(&PostParams::default(), &object).await.unwrap().metadata.uid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_refused_for_what_we_made_ourselves_is_no_failure() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "ours").await;
    let _blind = Blind::but_for(plane, &["get", "create", "delete"]);
    let controller = Controller::start(plane, "ours", &[]);
    world.create("m", CLOSED, |_| {}).await;
    let uid = world.until_phase("m", "Inactive").await.metadata.uid.unwrap();
    // As a process leaves it that dies after its second write.
    let owner = json!([{"apiVersion": "5spot.finos.org/v1alpha1", "kind": "ScheduledMachine", "name": "m", "uid": uid}]);
    let before = infrastructure(&world, "m", owner).await;
    world.open("m").await;
    let began = Instant::now();
    eventually("there is a Machine", async || {
        world.objects("Machine").get_opt("m").await.unwrap().is_some() || began.elapsed() > AT_ONCE
    })
    .await;
    assert!(began.elapsed() < AT_ONCE, "it was taken for a failure");
    world.until_phase("m", "Active").await;
    assert_eq!(world.objects("RemoteMachine").get("m").await.unwrap().metadata.uid, before);
    // Something else may have made it due again at once: nobody may have called it a failure either.
    let failures: Vec<_> =
        controller.log().lines().filter(|line| line.contains("a pass failed")).map(str::to_owned).collect();
    assert!(failures.is_empty(), "{failures:?}");
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_refused_for_what_somebody_else_made_is_no_success() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "theirs").await;
    let _blind = Blind::but_for(plane, &["get", "create", "delete"]);
    let controller = Controller::start(plane, "theirs", &[]);
    world.create("m", CLOSED, |_| {}).await;
    world.until_phase("m", "Inactive").await;
    let before = infrastructure(&world, "m", json!([])).await;
    world.open("m").await;
    let machine = world.until_phase("m", "Error").await;
    assert!(is(&machine, "Stalled", "True", "NameTaken"), "{}", message(&machine));
    assert!(
        message(&machine).contains("RemoteMachine m exists and does not belong"),
        "{}",
        message(&machine)
    );
    assert!(world.objects("Machine").get_opt("m").await.unwrap().is_none(), "a Machine was made for it");

    world.close("m").await;
    world.until_phase("m", "Inactive").await;
    world.until_gone(&world.objects("K0sWorkerConfig"), "m").await;
    let after = world.objects("RemoteMachine").get("m").await.unwrap().metadata;
    assert_eq!((after.uid, after.deletion_timestamp), (before, None), "it was touched");
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_read_is_said_in_status() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "mute").await;
    let blind = Blind::but_for(plane, &["create", "delete"]);
    let controller = Controller::start(plane, "mute", &[]);
    world.create("m", OPEN, |_| {}).await;
    let machine = world.until_phase("m", "Error").await;
    assert!(is(&machine, "Stalled", "True", "ProviderUnreadable"), "{}", message(&machine));
    assert!(is(&machine, "Ready", "False", "ProviderUnreadable"));
    let text = message(&machine);
    assert!(text.contains("forbidden") && text.contains("Give the controller that right"), "{text}");
    // With the right it goes on, at the next change.
    drop(blind);
    world.patch("m", json!({"metadata": {"labels": {"looked": "again"}}})).await;
    let machine = world.until_phase("m", "Active").await;
    assert!(is(&machine, "Ready", "True", "NodeReady"), "{}", message(&machine));
    end(&controller);
}
