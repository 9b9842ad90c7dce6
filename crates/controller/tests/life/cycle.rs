//! In and out again.

use crate::harness::{CLOSED, World, condition, is, message};
use crate::look::{CLUSTER_API, History, OURS, can_be_waited_for};
use crate::stage::{scenarios, world};
use fivespot_api::{ScheduledMachine, ScheduledMachineStatus};
use fivespot_testenv::AuditEntry;
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Value, json};

scenarios![a_machine_comes_and_goes_with_its_window];

fn status(machine: &ScheduledMachine) -> ScheduledMachineStatus {
    machine.status.clone().unwrap()
}

/// Nothing is said of objects that do not exist.
fn is_clear(status: &ScheduledMachineStatus) {
    assert_eq!(status.machine_ref, None);
    assert_eq!(status.bootstrap_ref, None);
    assert_eq!(status.infrastructure_ref, None);
    assert_eq!(status.node_ref, None);
    assert_eq!(status.provider_id, None);
    assert_eq!(status.applied_node_taints, []);
    assert_eq!(status.shutdown, None);
    assert_eq!(status.next_cleanup, None);
    assert_eq!(status.next_transition, status.next_activation);
    assert!(status.next_activation.is_some());
    assert_eq!(status.in_schedule, Some(false));
}

/// All hours but the one that is twelve away from now.
fn hours_but_one() -> (i8, String) {
    let now = Timestamp::now().to_zoned(TimeZone::UTC).hour();
    let away = (now + 12) % 24;
    (away, format!("{}-{}", (away + 1) % 24, (away + 23) % 24))
}

async fn a_machine_comes_and_goes_with_its_window() {
    let world = world().await;
    let change = |spec: &mut Value| {
        spec["nodeDrainTimeout"] = json!("40s");
        spec["gracefulShutdownTimeout"] = json!("90s");
        spec["nodeTaints"] = json!([{"key": "lent", "effect": "PreferNoSchedule"}]);
    };
    world.create("cycle", CLOSED, change).await;
    let machine = world.until_phase("cycle", "Inactive").await;
    can_be_waited_for(&machine);
    assert!(is(&machine, "Ready", "True", "OutsideWindow"));
    assert!(is(&machine, "Scheduled", "False", "OutsideWindow"));
    assert!(is(&machine, "MachineReady", "Unknown", "NoMachine"));
    is_clear(&status(&machine));
    assert_eq!(status(&machine).last_scheduled_time, None);

    let history = History::of(world, "cycle").await;
    let (away, hours) = hours_but_one();
    let schedule = json!({"cron": null, "hoursOfDay": [hours]});
    world.patch("cycle", json!({"spec": {"schedule": schedule}})).await;
    let machine = world.until_phase("cycle", "Active").await;
    is_active(&machine, away);
    has_its_objects(&machine).await;
    let pending = history.in_phase("Pending").await;
    assert!(!pending.is_empty());
    for machine in &pending {
        assert_eq!(status(machine).in_schedule, Some(true));
        let (ready, reason) = condition(machine, "Ready").unwrap();
        // On a busy machine the first look at the workload cluster may come before its answer.
        assert!(
            ["Provisioning", "WorkloadUnreachable", "NodeNotReady"].contains(&reason.as_str()),
            "{reason}"
        );
        assert_eq!(ready, "False");
        assert!(is(machine, "Scheduled", "True", "InWindow"));
    }

    world.pod("cycle", "cycle-web", |_| {}).await;
    let schedule = json!({"cron": CLOSED, "hoursOfDay": null});
    world.patch("cycle", json!({"spec": {"schedule": schedule}})).await;
    let machine = world.until_phase("cycle", "Inactive").await;
    world.nothing_is_left("cycle").await;
    assert!(is(&machine, "Ready", "True", "OutsideWindow"));
    is_clear(&status(&machine));
    assert!(status(&machine).last_scheduled_time.is_some(), "it was lent once");

    let leaving = history.in_phase("ShuttingDown").await;
    assert!(!leaving.is_empty());
    for machine in &leaving {
        says_how_it_leaves(machine);
    }
    history.all().iter().filter(|machine| machine.status.is_some()).for_each(can_be_waited_for);
    for event in [
        "ScheduleActive",
        "MachineCreated",
        "ScheduleInactive",
        "NodeDraining",
        "NodeDrained",
        "MachineDeleted",
    ] {
        assert_eq!(world.count_events("cycle", event).await, 1, "{event}: {:?}", world.events("cycle").await);
    }
    went_in_order(world);
}

fn is_active(machine: &ScheduledMachine, closes_at_hour: i8) {
    can_be_waited_for(machine);
    let status = status(machine);
    assert!(is(machine, "Ready", "True", "NodeReady"));
    assert!(is(machine, "Scheduled", "True", "InWindow"));
    assert!(is(machine, "NodeTainted", "True", "Applied"));
    assert!(is(machine, "WorkloadReachable", "True", "KubeconfigSecret"));
    assert_eq!((status.in_schedule, status.shutdown), (Some(true), None));
    assert_eq!(status.applied_node_taints.len(), 1);
    let (closes, opens) = (status.next_cleanup.unwrap().0, status.next_activation.unwrap().0);
    let local = closes.to_zoned(TimeZone::UTC);
    assert_eq!((local.hour(), local.minute(), local.second()), (closes_at_hour, 0, 0));
    assert_eq!(opens.duration_since(closes), SignedDuration::from_hours(1));
    assert_eq!(status.next_transition.unwrap().0, closes);
    assert_eq!(status.instance, Some(0));
    let finalizers = machine.metadata.finalizers.clone().unwrap();
    assert_eq!(finalizers, ["5spot.finos.org/scheduledmachine"]);
}

/// What status names exists, and is as it says.
async fn has_its_objects(machine: &ScheduledMachine) {
    let (world, status) = (world().await, status(machine));
    let name = machine.metadata.name.as_deref().unwrap();
    let capi = world.capi_machine(name).await;
    let reference = status.machine_ref.unwrap();
    assert_eq!(reference.api_version, format!("cluster.x-k8s.io/{}", crate::VERSION));
    assert_eq!((reference.kind.as_str(), reference.name.as_str()), ("Machine", name));
    assert_eq!((reference.namespace, reference.uid), (world.namespace.clone(), capi.metadata.uid));
    assert_eq!(status.last_scheduled_time, capi.metadata.creation_timestamp);
    assert_eq!(status.provider_id.as_deref(), capi.data["spec"]["providerID"].as_str());
    for (reference, kind) in
        [(status.bootstrap_ref, "K0sWorkerConfig"), (status.infrastructure_ref, "RemoteMachine")]
    {
        let reference = reference.unwrap();
        assert_eq!((reference.kind.as_str(), reference.name.as_str()), (kind, name));
        assert_eq!(reference.uid, world.objects(kind).get(name).await.unwrap().metadata.uid);
    }
    let (node, reference) = (world.node(name).await, status.node_ref.unwrap());
    assert_eq!((reference.api_version.as_str(), reference.kind.as_str()), ("v1", "Node"));
    assert_eq!((Some(reference.name), reference.uid), (node.metadata.name, node.metadata.uid));
    assert_eq!(node.spec.unwrap().provider_id, status.provider_id);
}

fn says_how_it_leaves(machine: &ScheduledMachine) {
    let status = status(machine);
    assert_eq!(status.in_schedule, Some(false));
    let Some(shutdown) = status.shutdown else {
        // The Machine is gone by another's hand, and what it leaves goes by ours.
        assert_eq!(status.machine_ref, None, "{}", message(machine));
        return;
    };
    assert_eq!(shutdown.cause.as_deref(), Some("WindowClosed"));
    let (start, end) = (shutdown.started_at.unwrap().0, shutdown.drain_deadline.unwrap().0);
    let budget = end.duration_since(start).as_secs();
    assert!((40..=41).contains(&budget), "{budget} s is not nodeDrainTimeout");
    if is(machine, "Ready", "False", "Draining") {
        assert_eq!(status.next_cleanup.unwrap().0, end);
        assert_eq!(status.next_transition.unwrap().0, end);
        assert!(status.next_activation.is_some() && status.node_ref.is_some());
    }
}

/// Cordon, eviction, Machine, infrastructure, bootstrap, Node: each by the hand it should be.
fn went_in_order(world: &World) {
    let plane = world.plane;
    let (management, workload) = (plane.management().audit().unwrap(), plane.workload().audit().unwrap());
    let node = world.hosts.node_name("cycle");
    let first = |entries: &[AuditEntry], program: &str, verb: &str, resource: &str, name: &str| {
        let is_it = |it: &&AuditEntry| {
            it.user_agent.starts_with(program)
                && (it.verb.as_str(), it.resource.as_str(), it.name.as_str()) == (verb, resource, name)
                && (it.namespace.is_empty() || it.namespace == world.namespace)
                && (200..300).contains(&it.code)
        };
        let found = entries.iter().find(is_it);
        found.unwrap_or_else(|| panic!("no {verb} of {resource} {name} by {program}")).at
    };
    let taints = first(&workload, OURS, "patch", "nodes", &node);
    let eviction = first(&workload, OURS, "create", "pods", "cycle-web");
    let machine = first(&management, OURS, "delete", "machines", "cycle");
    let infrastructure = first(&management, CLUSTER_API, "delete", "remotemachines", "cycle");
    let bootstrap = first(&management, CLUSTER_API, "delete", "k0sworkerconfigs", "cycle");
    let node = first(&workload, CLUSTER_API, "delete", "nodes", &node);
    let order = [taints, eviction, machine, infrastructure, bootstrap, node];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(world.evictions("cycle-web", OURS), [201]);
    assert_eq!(world.evictions("cycle-web", CLUSTER_API), [0; 0]);
    assert_eq!(world.pod_deletions("cycle-web", OURS), 0);
    let by_us = |it: &&AuditEntry| {
        it.verb == "delete" && it.user_agent.starts_with(OURS) && it.namespace == world.namespace
    };
    let deleted: Vec<&str> = management
        .iter()
        .filter(by_us)
        .filter(|it| it.name == "cycle")
        .map(|it| it.resource.as_str())
        .collect();
    assert_eq!(deleted, ["machines"], "the rest is Cluster API's to delete");
}
