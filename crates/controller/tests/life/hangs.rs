//! Machines that neither join nor leave: what is wrong is said in the words of who knows it.

use crate::harness::{OPEN, is, message};
use crate::stage::{own_world, scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{Fault, SSH_KEY, create_ssh_key, eventually};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::DeleteParams;
use std::time::{Duration, Instant};

scenarios![
    a_machine_that_cannot_join_says_what_its_provider_says,
    a_machine_that_cannot_leave_says_what_it_waits_for,
    a_rescue_makes_the_bootstrap_object_too,
];

async fn a_machine_that_cannot_join_says_what_its_provider_says() {
    let world = world().await;
    world.hosts.set("refusing", Fault::ConnectionRefused);
    world.create("refusing", OPEN, |_| {}).await;
    let says = |machine: &ScheduledMachine| message(machine).contains("connection refused");
    let machine = world.until("refusing", "telling the cause", says).await;
    assert!(is(&machine, "Ready", "False", "Provisioning"));
    world.hosts.reset("refusing");
    world.until_phase("refusing", "Active").await;
}

async fn a_machine_that_cannot_leave_says_what_it_waits_for() {
    let world = own_world("keyless").await;
    world.lend("keyless", |_| {}).await;
    let secrets: Api<Secret> = Api::namespaced(world.management.clone(), &world.namespace);
    secrets.delete(SSH_KEY, &DeleteParams::default()).await.unwrap();
    world.close("keyless").await;
    let says = |machine: &ScheduledMachine| {
        let message = message(machine);
        message.contains("Waiting for RemoteMachine") && message.contains(SSH_KEY)
    };
    let machine = world.until("keyless", "telling what it waits for", says).await;
    assert!(is(&machine, "Ready", "False", "MachineDeleting"), "{:?}", machine.status);
    create_ssh_key(world.plane, &world.namespace).await.unwrap();
    world.until_phase("keyless", "Inactive").await;
}

/// An infrastructure object that was made and never had a Machine hangs in its deletion, and nobody has a bootstrap
/// object any more.
async fn a_rescue_makes_the_bootstrap_object_too() {
    let world = world().await;
    let name = "rescued";
    let faults = [Fault::IgnoresDeletionWithoutMachine, Fault::HangsWithoutBootstrapObject];
    world.hosts.set(name, fivespot_testenv::Behaviour::faulty(faults));
    world.create(name, crate::harness::CLOSED, |_| {}).await;
    let uid = world.until_phase(name, "Inactive").await.metadata.uid.unwrap();
    let left = serde_json::json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "RemoteMachine",
        "metadata": {
            "name": name,
            // The provider has seen it: without its finalizer the object would be gone before anything can hang.
            "finalizers": ["remotemachine.k0smotron.io/finalizer"],
            "ownerReferences": [{
                "apiVersion": "5spot.finos.org/v1alpha1", "kind": "ScheduledMachine", "name": name, "uid": uid,
            }],
        },
        "spec": world.remote_machine(name),
    });
    let finalizer = serde_json::json!({"metadata": {"finalizers": ["5spot.finos.org/scheduledmachine"]}});
    world.patch(name, finalizer).await;
    let objects = world.objects("RemoteMachine");
    objects.create(&kube::api::PostParams::default(), &serde_json::from_value(left).unwrap()).await.unwrap();
    let hangs = Instant::now();
    eventually("a Machine is made to let it go", async || {
        world.objects("Machine").get_opt(name).await.unwrap().is_some()
    })
    .await;
    assert!(hangs.elapsed() > Duration::from_secs(20), "nothing hung: {:?}", hangs.elapsed());
    world.until_gone(&objects, name).await;
    world.until_phase(name, "Inactive").await;
    world.nothing_is_left(name).await;
}
