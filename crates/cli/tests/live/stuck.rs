//! What `5spot explain` says on two bad days: a machine that cannot leave, and a host that came back.

use crate::taken_back::{World, always};
use crate::{check, machine};
use expect_test::expect;
use fivespot_testenv::{Fault, SSH_KEY};
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn a_leave_that_hangs_and_a_host_that_was_not_cleaned_are_explained() {
    let world = World::start().await;
    for name in ["hung", "dirty"] {
        world.apply(&machine(name, always), &[]);
        world.until_phase(name, "Active");
    }
    let disable = r#"{"spec":{"schedule":{"enabled":false}}}"#;

    // sshd is down when its window ends, and in the morning the host boots.
    world.hosts.set("dirty", Fault::CleanUpFails);
    world.kubectl(&["patch", "sm", "dirty", "--type=merge", "-p", disable]);
    world.until_phase("dirty", "Disabled");
    assert!(world.hosts.reboot("dirty").await.unwrap());
    world.until_phase("dirty", "Error");
    check(
        &world.plane,
        &["explain", "dirty"],
        &expect![[r#"
        default/dirty: Error
        The host is not with its owner yet: Node default-dirty is in the cluster without a Machine, so the provider did not clean the host up. On the host run what the provider would have run (for k0s: k0s stop, k0s reset, reboot), then kubectl delete node default-dirty. It is cordoned and no pod is left on it

        window open for ever; cron * * * * * in Europe/Zurich
        order spec.schedule.enabled is false: out gracefully, and out it stays
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node default-dirty: Ready, cordoned by 5-Spot; seen through its kubeconfig Secret
        node 0 pods; nothing is left that must go
        host NodeWithoutMachine, as said above
        taints NoNodeYet: There is no Node, or it is leaving

        does nothing now
        waits HostNotCleaned: The host is not with its owner yet: Node default-dirty is in the cluster without a Machine, so the provider did not clean the host up. On the host run what the provider would have run (for k0s: k0s stop, k0s reset, reboot), then kubectl delete node default-dirty. It is cordoned and no pod is left on it
        changes when something around it changes
        exit 1
    "#]],
    );

    // Somebody removed the key by which the provider logs in.
    world.kubectl(&["delete", "secret", SSH_KEY]);
    world.kubectl(&["patch", "sm", "hung", "--type=merge", "-p", disable]);
    let says = |status: &Value| status["message"].as_str().is_some_and(|text| text.contains(SSH_KEY));
    world.until("hung", "telling what it waits for", says);
    check(
        &world.plane,
        &["explain", "hung"],
        &expect![[r#"
        default/hung: ShuttingDown
        Cluster API is deleting the Machine: Deleting; the provider says: secrets "workstation-ssh-key" not found

        window open for ever; cron * * * * * in Europe/Zurich
        order spec.schedule.enabled is false: out gracefully, and out it stays
        cluster lab: is there
        bootstrap is there, for TIME
        infra is being deleted, for TIME
        machine is being deleted, for TIME; not Ready
        node default-hung: Ready, cordoned by 5-Spot; seen through its kubeconfig Secret
        taints NoNodeYet: There is no Node, or it is leaving

        does nothing now
        waits MachineDeleting: Cluster API is deleting the Machine: Deleting; the provider says: secrets "workstation-ssh-key" not found
        changes TIME, in TIME, if nothing else happens
        looks again every TIME
        exit 0
    "#]],
    );
}
