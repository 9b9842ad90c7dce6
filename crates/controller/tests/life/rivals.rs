//! Two ScheduledMachines for one host.

use crate::harness::{CLOSED, OPEN, is, message};
use crate::stage::{scenarios, world};
use fivespot_api::ScheduledMachine;
use serde_json::{Value, json};

scenarios![
    a_second_machine_of_an_address_waits_until_the_first_has_left,
    of_two_that_open_at_once_the_older_gets_the_host,
];

async fn a_second_machine_of_an_address_waits_until_the_first_has_left() {
    let world = world().await;
    world.lend("first", |_| {}).await;
    let address = world.hosts.address("first");
    world.create("second", OPEN, |spec| spec["infrastructureSpec"]["spec"]["address"] = json!(address)).await;
    let machine = world.until_phase("second", "Error").await;
    assert!(is(&machine, "Ready", "False", "AddressInUse"), "{:?}", machine.status);
    let other = format!("{}/first", world.namespace);
    assert!(message(&machine).contains(&other), "{}", message(&machine));
    for kind in ["K0sWorkerConfig", "RemoteMachine", "Machine"] {
        assert!(world.objects(kind).get_opt("second").await.unwrap().is_none(), "{kind} exists");
    }
    assert!(world.hosts.resets("first").is_empty(), "the host was reset under the first");
    world.close("first").await;
    world.until_phase("first", "Inactive").await;
    world.until_phase("second", "Active").await;
    assert_eq!(world.hosts.resets("first").len(), 1);
}

async fn of_two_that_open_at_once_the_older_gets_the_host() {
    let world = world().await;
    world.create("elder", CLOSED, |_| {}).await;
    world.until_phase("elder", "Inactive").await;
    let address = world.hosts.address("elder");
    let same = |spec: &mut Value| spec["infrastructureSpec"]["spec"]["address"] = json!(address);
    world.create("younger", CLOSED, same).await;
    world.until_phase("younger", "Inactive").await;
    // Both at once, the younger first: none has anything yet.
    tokio::join!(world.open("younger"), world.open("elder"));
    let settled = |machine: &ScheduledMachine| {
        let phase = machine.status.as_ref().and_then(|status| status.phase.clone());
        matches!(phase.as_deref(), Some("Active" | "Error"))
    };
    let (elder, younger) =
        tokio::join!(world.until("elder", "settled", settled), world.until("younger", "settled", settled));
    let lent =
        [&elder, &younger].into_iter().filter(|machine| is(machine, "Ready", "True", "NodeReady")).count();
    assert_eq!(lent, 1, "one of them has the host: {:?} {:?}", elder.status, younger.status);
    assert!(world.hosts.resets("elder").is_empty(), "the host was reset");
}
