//! Taints: ours are kept as declared, those of others are never touched.

use crate::harness::{World, is};
use crate::stage::{scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{Identity, eventually};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;

scenarios![
    nobody_loses_a_taint_in_a_race,
    they_are_applied_and_repaired_and_only_ours_are_removed,
    a_taint_of_somebody_else_is_a_conflict_also_with_an_equal_value,
    a_value_that_somebody_changed_is_left_and_shown,
    a_kubelet_gets_no_taint_removed_that_it_may_not_remove_itself,
];

/// Rounds of the race.
const ROUNDS: u32 = 200;

fn taint(key: &str, value: &str) -> Value {
    json!({"key": key, "value": value, "effect": "NoSchedule"})
}

async fn declare(world: &World, name: &str, taints: Value) {
    world.patch(name, json!({"spec": {"nodeTaints": taints}})).await;
}

/// Changes the taints of a Node as a careful administrator does: as often as somebody was faster.
async fn edit(world: &World, name: &str, change: impl Fn(&mut Vec<Taint>)) {
    loop {
        let mut node: Node = world.node(name).await;
        change(node.spec.as_mut().unwrap().taints.get_or_insert_default());
        match world.nodes().replace(&world.hosts.node_name(name), &PostParams::default(), &node).await {
            Err(kube::Error::Api(answer)) if answer.code == 409 => {}
            outcome => return drop(outcome.unwrap()),
        }
    }
}

async fn add(world: &World, name: &str, key: &str, value: &str) {
    let wanted: Taint = serde_json::from_value(taint(key, value)).unwrap();
    edit(world, name, |taints| taints.push(wanted.clone())).await;
}

async fn remove(world: &World, name: &str, key: &str) {
    edit(world, name, |taints| taints.retain(|taint| taint.key != key)).await;
}

async fn until_taints(world: &World, name: &str, expected: &[&str]) {
    eventually(&format!("the taints are {expected:?}"), async || world.taints(name).await == expected).await;
}

async fn until_tainted(world: &World, name: &str, status: &str, reason: &str) -> ScheduledMachine {
    let holds = |machine: &ScheduledMachine| {
        let generation = machine.status.as_ref().and_then(|status| status.observed_generation);
        generation == machine.metadata.generation && is(machine, "NodeTainted", status, reason)
    };
    world.until(name, reason, holds).await
}

/// What the condition NodeTainted says.
fn conflicts(machine: &ScheduledMachine) -> String {
    let conditions = &machine.status.as_ref().unwrap().conditions;
    conditions.iter().find(|condition| condition.type_ == "NodeTainted").unwrap().message.clone()
}

fn applied(machine: &ScheduledMachine) -> Vec<String> {
    let taints = &machine.status.as_ref().unwrap().applied_node_taints;
    taints.iter().map(|taint| format!("{}={}", taint.key, taint.value.clone().unwrap_or_default())).collect()
}

async fn they_are_applied_and_repaired_and_only_ours_are_removed() {
    let world = world().await;
    let both = json!([taint("a", "1"), {"key": "b", "effect": "NoExecute"}]);
    let machine = world.lend("tainted", |spec| spec["nodeTaints"] = both).await;
    assert!(is(&machine, "NodeTainted", "True", "Applied"));
    assert_eq!(world.taints("tainted").await, ["a=1:NoSchedule", "b:NoExecute"]);
    assert_eq!(applied(&machine), ["a=1", "b="]);
    let record = r#"[{"key":"a","effect":"NoSchedule","value":"1"},{"key":"b","effect":"NoExecute"}]"#;
    let annotation = world.node_annotation("tainted", "5spot.finos.org/applied-taints").await;
    assert_eq!(annotation.as_deref(), Some(record));

    remove(world, "tainted", "a").await;
    until_taints(world, "tainted", &["a=1:NoSchedule", "b:NoExecute"]).await;
    add(world, "tainted", "admin", "x").await;
    declare(world, "tainted", json!([taint("a", "2")])).await;
    until_taints(world, "tainted", &["a=2:NoSchedule", "admin=x:NoSchedule"]).await;
    let machine = until_tainted(world, "tainted", "True", "Applied").await;
    assert_eq!(applied(&machine), ["a=2"]);
    declare(world, "tainted", json!([])).await;
    until_taints(world, "tainted", &["admin=x:NoSchedule"]).await;
    let is_forgotten = |machine: &ScheduledMachine| applied(machine).is_empty();
    world.until("tainted", "without taints of ours", is_forgotten).await;
    assert_eq!(world.node_annotation("tainted", "5spot.finos.org/applied-taints").await, None);
    assert!(!world.has_event("tainted", "TaintOwnershipConflict").await);
}

async fn a_taint_of_somebody_else_is_a_conflict_also_with_an_equal_value() {
    let world = world().await;
    world.lend("contested", |_| {}).await;
    add(world, "contested", "same", "1").await;
    add(world, "contested", "other", "1").await;
    declare(world, "contested", json!([taint("same", "1"), taint("other", "2"), taint("free", "3")])).await;
    let machine = until_tainted(world, "contested", "False", "TaintOwnershipConflict").await;
    let text = conflicts(&machine);
    assert!(text.contains("same:NoSchedule") && text.contains("other:NoSchedule"), "{text}");
    assert!(!text.contains("free"), "{text}");
    assert_eq!(machine.status.as_ref().unwrap().phase.as_deref(), Some("Active"), "it serves all the same");
    world.until("contested", "tainted as far as it goes", |it| applied(it) == ["free=3"]).await;
    until_taints(world, "contested", &["free=3:NoSchedule", "other=1:NoSchedule", "same=1:NoSchedule"]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.count_events("contested", "TaintOwnershipConflict").await, 1);
    // Not ours to remove, either.
    declare(world, "contested", json!([taint("other", "2")])).await;
    until_taints(world, "contested", &["other=1:NoSchedule", "same=1:NoSchedule"]).await;
    remove(world, "contested", "other").await;
    until_taints(world, "contested", &["other=2:NoSchedule", "same=1:NoSchedule"]).await;
    until_tainted(world, "contested", "True", "Applied").await;
}

async fn a_value_that_somebody_changed_is_left_and_shown() {
    let world = world().await;
    world.lend("edited", |spec| spec["nodeTaints"] = json!([taint("a", "1")])).await;
    edit(world, "edited", |taints| {
        taints.iter_mut().filter(|it| it.key == "a").for_each(|it| it.value = Some("7".into()));
    })
    .await;
    let machine = until_tainted(world, "edited", "False", "TaintOwnershipConflict").await;
    let text = conflicts(&machine);
    assert!(text.contains("a:NoSchedule") && text.contains("\"7\"") && text.contains("\"1\""), "{text}");
    assert_eq!(world.taints("edited").await, ["a=7:NoSchedule"]);
    declare(world, "edited", json!([])).await;
    let machine = until_tainted(world, "edited", "False", "TaintOwnershipConflict").await;
    assert_eq!(applied(&machine), ["a=1"]);
    assert_eq!(
        world.taints("edited").await,
        ["a=7:NoSchedule"],
        "we do not remove what is not as we left it"
    );
    edit(world, "edited", |taints| {
        taints.iter_mut().filter(|it| it.key == "a").for_each(|it| it.value = Some("1".into()));
    })
    .await;
    until_taints(world, "edited", &[]).await;
    until_tainted(world, "edited", "True", "Applied").await;
}

async fn a_kubelet_gets_no_taint_removed_that_it_may_not_remove_itself() {
    let world = world().await;
    world.lend("forging", |spec| spec["nodeTaints"] = json!([taint("ours", "1")])).await;
    add(world, "forging", "quarantine", "x").await;
    let node = world.hosts.node_name("forging");
    let kubelet = Identity { user: format!("system:node:{node}"), groups: vec!["system:nodes".to_owned()] };
    let nodes: Api<Node> = Api::all(world.plane.workload().client_as(&kubelet).await.unwrap());
    let params = PatchParams::default();
    let refused = Patch::Merge(json!({"spec": {"taints": null}}));
    let refused = nodes.patch(&node, &params, &refused).await.unwrap_err().to_string();
    assert!(refused.contains("not allowed to modify taints"), "{refused}");
    // Its annotations are its own, so it names in our record what it wants to be rid of.
    let forged = json!([
        {"key": "ours", "effect": "NoSchedule", "value": "1"},
        {"key": "quarantine", "effect": "NoSchedule", "value": "x"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    ]);
    let forged = json!({"metadata": {"annotations": {"5spot.finos.org/applied-taints": forged.to_string()}}});
    nodes.patch(&node, &params, &Patch::Merge(&forged)).await.unwrap();
    let machine = until_tainted(world, "forging", "False", "TaintOwnershipConflict").await;
    let text = conflicts(&machine);
    println!("{text}");
    assert!(text.contains("quarantine:NoSchedule is in the annotation"), "{text}");
    assert_eq!(applied(&machine), ["ours=1"]);
    assert_eq!(world.taints("forging").await, ["ours=1:NoSchedule", "quarantine=x:NoSchedule"]);
    // What is really ours goes all the same, and the rest of the forged record with it.
    declare(world, "forging", json!([])).await;
    until_taints(world, "forging", &["quarantine=x:NoSchedule"]).await;
    until_tainted(world, "forging", "True", "Applied").await;
    assert_eq!(world.node_annotation("forging", "5spot.finos.org/applied-taints").await, None);
}

/// An administrator's program adds and removes its taint while ours are declared and taken back.
async fn nobody_loses_a_taint_in_a_race() {
    let world = world().await;
    world.lend("raced", |_| {}).await;
    add(world, "raced", "still", "1").await;
    let (done, mut over) = watch::channel(false);
    let actor = async {
        for round in 0..ROUNDS {
            let expected = if round % 2 == 0 { None } else { Some("actor=1:NoSchedule") };
            let found = world.taints("raced").await;
            let actors = found.iter().find(|taint| taint.starts_with("actor"));
            assert_eq!(actors.map(String::as_str), expected, "round {round}: {found:?}");
            assert!(found.iter().any(|taint| taint == "still=1:NoSchedule"), "round {round}: {found:?}");
            if round % 2 == 0 {
                add(world, "raced", "actor", "1").await;
            } else {
                remove(world, "raced", "actor").await;
            }
        }
        add(world, "raced", "actor", "1").await;
        done.send_replace(true);
    };
    let toggler = async {
        let mut changes = 0;
        while !*over.borrow_and_update() {
            changes += 1;
            let taints = if changes % 2 == 0 { json!([]) } else { json!([taint("ours", "1")]) };
            declare(world, "raced", taints).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        declare(world, "raced", json!([taint("ours", "2")])).await;
        changes
    };
    let ((), changes) = tokio::join!(actor, toggler);
    assert!(changes > 10, "there was no race: {changes} changes");
    let end = ["actor=1:NoSchedule", "ours=2:NoSchedule", "still=1:NoSchedule"];
    until_taints(world, "raced", &end).await;
    let machine = until_tainted(world, "raced", "True", "Applied").await;
    assert_eq!(applied(&machine), ["ours=2"]);
    assert!(!world.has_event("raced", "TaintOwnershipConflict").await);
}
