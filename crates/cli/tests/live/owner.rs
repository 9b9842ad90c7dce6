//! The commands as the owner of one machine runs them, with the Role that `deploy/owner` gives and nothing else.

use crate::taken_back::{PATIENCE, World, always};
use crate::{compare, from_root, machine, run_with};
use expect_test::{Expect, expect};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// The kubeconfig of an account in the default namespace, which has the rights of an owner to the machine of the example.
fn owner(world: &World) -> NamedTempFile {
    world.kubectl(&["create", "serviceaccount", "ada"]);
    let documents = world.kubectl(&["kustomize", from_root("examples/owner").to_str().unwrap()]);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&documents).unwrap();
    assert_eq!(documents.len(), 2);
    for mut document in documents {
        if document["kind"] == "RoleBinding" {
            assert_eq!(document["subjects"][0]["name"], "ada@example.com");
            document["subjects"] = json!([{"kind": "ServiceAccount", "name": "ada", "namespace": "default"}]);
        } else {
            assert_eq!(document["rules"][0]["resourceNames"], json!(["workstation"]));
        }
        world.apply(&document, &[]);
    }
    let token = world.kubectl(&["create", "token", "ada"]);
    let admin = world.kubectl(&["config", "view", "--raw", "-o", "json"]);
    let mut config: Value = serde_json::from_str(&admin).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), config.to_string()).unwrap();
    file
}

/// What a command prints. Of the conditions Ready is enough: the tests of the controller look at the others.
fn check(kubeconfig: &Path, args: &[&str], expect: &Expect) {
    let mut output = run_with(kubeconfig, args);
    let text = String::from_utf8(output.stdout).unwrap();
    let is_shown = |line: &&str| !line.starts_with("  condition ") || line.contains(" Ready=");
    output.stdout = text.split_inclusive('\n').filter(is_shown).collect::<String>().into_bytes();
    compare(&output, expect);
}

/// Waits until the server knows of a right.
fn until_allowed(world: &World, kubeconfig: &Path, right: &[&str]) {
    let config = ["--kubeconfig", kubeconfig.to_str().unwrap(), "auth", "can-i"];
    let began = Instant::now();
    while world.plane.kubectl(world.plane.management(), &[&config, right].concat(), "").is_err() {
        assert!(began.elapsed() < PATIENCE, "still not allowed: {right:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_sees_reclaims_and_resumes_one_machine_and_no_other() {
    let world = World::start().await;
    for (name, address) in [("workstation", "192.0.2.1"), ("other", "192.0.2.2")] {
        let lent = |spec: &mut Value| {
            always(spec);
            // Two machines with one address would reset each other's host.
            spec["infrastructureSpec"]["spec"]["address"] = json!(address);
        };
        world.apply(&machine(name, lent), &[]);
        world.until_phase(name, "Active");
    }
    let file = owner(&world);
    let ada = file.path();
    until_allowed(&world, ada, &["patch", "scheduledmachines.5spot.finos.org/workstation"]);

    sees(ada);
    sees_more_with_more_rights(&world, ada);
    others_are_refused(&world, ada);

    check(
        ada,
        &["reclaim", "workstation", "--reason", "a deadline", "--wait"],
        &expect![[r#"
        default/workstation: asked back at once (by-hand: a deadline)
        Node default-workstation is cordoned and its pods end without grace, within 60 s; then its Machine is deleted
        spec.schedule.enabled becomes false, and it stays with its owner until: 5spot resume workstation -n default
        (when its pods are gone is not shown: you have no right to read its Machine and its Node)
        TIME s accepted by the controller: from here on it finishes
        TIME s Machine deleted
        TIME s schedule disabled, and held
        TIME s Disabled: nothing of it is left in the cluster
        exit 0
    "#]],
    );
    check(
        ada,
        &["explain", "workstation"],
        &expect![[r#"
            default/workstation: Disabled
            The owner took the machine back (by-hand: a deadline); spec.schedule.enabled was set to false. To lend it again: 5spot resume workstation -n default (which annotates it with 5spot.finos.org/resume=ID)
            (as the controller last wrote it: what it would do now is not worked out, since you may not read all that it looks at)

            window open for ever; cron * * * * * in Europe/Zurich
            order held by reclaim ID (by-hand: a deadline): nothing is created, whatever spec.schedule.enabled says, until: 5spot resume workstation -n default
            order spec.schedule.enabled was set to false for that reclaim
            cluster lab: not shown: you have no right to get clusters.cluster.x-k8s.io
            bootstrap not shown: you have no right to get k0sworkerconfigs.bootstrap.cluster.x-k8s.io
            infra not shown: you have no right to get remotemachines.infrastructure.cluster.x-k8s.io
            machine not shown: you have no right to get machines.cluster.x-k8s.io
            node not shown: you have no right to get machines.cluster.x-k8s.io
            condition Ready=True ScheduleDisabled
            exit 0
        "#]],
    );
    check(
        ada,
        &["resume", "workstation"],
        &expect![[r#"
        default/workstation: lent again by its schedule

        taken back by-hand: a deadline
        when TIME, TIME ago
        node default-workstation
        programs idea, steam: whether one still runs is not known here: its agent looks when the machine has joined, and if so it is taken back again
        next its window is open: it joins now
        exit 0
    "#]],
    );
    world.until_phase("workstation", "Active");
}

/// Everything that the object says, and the rights that are missing for the rest.
fn sees(ada: &Path) {
    check(
        ada,
        &["get", "workstation"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON
        workstation Active open never default-workstation NodeReady
        exit 0
    "#]],
    );
    check(
        ada,
        &["get", "workstation", "-o", "wide"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON CLUSTER PRIORITY INSTANCE MESSAGE
        workstation Active open never default-workstation NodeReady lab 50 slot 0 The machine is in the cluster and its Node is Ready
        exit 0
    "#]],
    );
    check(
        ada,
        &["get"],
        &expect![[r#"
        5spot: you may not list all machines here; name yours, with -n and its namespace: 5spot get NAME: could not read ScheduledMachines: scheduledmachines.5spot.finos.org is forbidden: User "system:serviceaccount:default:ada" cannot list resource "scheduledmachines" in API group "5spot.finos.org" in the namespace "default"
        exit 2
    "#]],
    );
    check(
        ada,
        &["explain", "workstation"],
        &expect![[r#"
            default/workstation: Active
            The machine is in the cluster and its Node is Ready
            (as the controller last wrote it: what it would do now is not worked out, since you may not read all that it looks at)

            window open for ever; cron * * * * * in Europe/Zurich
            cluster lab: not shown: you have no right to get clusters.cluster.x-k8s.io
            bootstrap not shown: you have no right to get k0sworkerconfigs.bootstrap.cluster.x-k8s.io
            infra not shown: you have no right to get remotemachines.infrastructure.cluster.x-k8s.io
            machine not shown: you have no right to get machines.cluster.x-k8s.io
            node default-workstation, as status says; not shown: you have no right to get machines.cluster.x-k8s.io
            condition Ready=True NodeReady
            exit 0
        "#]],
    );
    let output = run_with(ada, &["explain", "workstation", "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(explained["phaseInStatus"], "Active");
    assert_eq!(explained["windowOpen"], true);
    let machines = "get machines.cluster.x-k8s.io";
    assert_eq!(
        explained["notReadable"],
        json!([
            {"part": "cluster", "right": "get clusters.cluster.x-k8s.io"},
            {"part": "bootstrap", "right": "get k0sworkerconfigs.bootstrap.cluster.x-k8s.io"},
            {"part": "infra", "right": "get remotemachines.infrastructure.cluster.x-k8s.io"},
            {"part": "machine", "right": machines},
            {"part": "node", "right": machines},
        ])
    );
}

/// Somebody who may see the objects of Cluster API, but not the Secret that leads to the Node.
fn sees_more_with_more_rights(world: &World, ada: &Path) {
    let resources = "machines.cluster.x-k8s.io,clusters.cluster.x-k8s.io";
    world.kubectl(&["create", "role", "more", "--verb=get", "--resource", resources]);
    world.kubectl(&["create", "rolebinding", "more", "--role=more", "--serviceaccount=default:ada"]);
    until_allowed(world, ada, &["get", "machines.cluster.x-k8s.io"]);
    check(
        ada,
        &["explain", "workstation"],
        &expect![[r#"
            default/workstation: Active
            The machine is in the cluster and its Node is Ready
            (as the controller last wrote it: what it would do now is not worked out, since you may not read all that it looks at)

            window open for ever; cron * * * * * in Europe/Zurich
            cluster lab: is there
            bootstrap not shown: you have no right to get k0sworkerconfigs.bootstrap.cluster.x-k8s.io
            infra not shown: you have no right to get remotemachines.infrastructure.cluster.x-k8s.io
            machine is there, for TIME; Ready
            node default-workstation, as status says; not shown: you have no right to list Secret lab-kubeconfig
            condition Ready=True NodeReady
            exit 0
        "#]],
    );
    world.kubectl(&["delete", "rolebinding", "more"]);
}

fn others_are_refused(world: &World, ada: &Path) {
    let before = world.read("other")["metadata"]["resourceVersion"].clone();
    for args in [
        &["get", "other"][..],
        &["get", "workstation", "other"],
        &["get", "-A"],
        &["explain", "other"],
        &["reclaim", "other", "--reason", "mine now"],
        &["resume", "other"],
    ] {
        let output = run_with(ada, args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("is forbidden"), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}: {:?}", String::from_utf8(output.stdout));
    }
    let kubectl = |args: &[&str]| {
        let config = ["--kubeconfig", ada.to_str().unwrap()];
        world.plane.kubectl(world.plane.management(), &[&config, args].concat(), "")
    };
    let by_name = kubectl(&["get", "sm", "--field-selector", "metadata.name=workstation"]).unwrap();
    assert!(by_name.contains("workstation"), "{by_name}");
    for args in [
        &["get", "sm"][..],
        &["patch", "sm", "other", "--type=merge", "-p", r#"{"spec":{"killSwitch":true}}"#],
        &["delete", "sm", "workstation"],
        &["patch", "sm", "workstation", "--subresource=status", "--type=merge", "-p", "{}"],
        &["get", "secret", "lab-kubeconfig"],
    ] {
        let refused = kubectl(args).unwrap_err().to_string();
        assert!(refused.contains("orbidden"), "{args:?}: {refused}");
    }
    assert_eq!(world.read("other")["metadata"]["resourceVersion"], before, "somebody wrote to it");
}
