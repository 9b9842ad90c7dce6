//! Commands that look, and write nothing.

use crate::{check, machine, run, start};
use expect_test::expect;
use fivespot_testenv::{ControlPlane, create_cluster};
use serde_json::{Value, json};
use std::fs;

#[tokio::test]
async fn machines_are_listed_and_explained_as_the_controller_would_see_them() {
    let plane = start().await;
    let kubectl = |args: &[&str], input: &str| plane.kubectl(plane.management(), args, input).unwrap();
    check(
        &plane,
        &["get"],
        &expect![[r#"
        no ScheduledMachines in namespace default
        exit 0
    "#]],
    );

    create_cluster(&plane, "default", "lab").await.unwrap();
    let apply = |machine: &Value| kubectl(&["apply", "-f", "-"], &machine.to_string());
    apply(&machine("closed", |_| {}));
    apply(&machine("invalid", |spec| spec["schedule"]["timezone"] = json!("Mars/Olympus")));
    apply(&machine("killed", |spec| spec["killSwitch"] = json!(true)));
    apply(&machine("lost", |spec| {
        spec["clusterName"] = json!("nowhere");
        spec["schedule"]["cron"] = json!("* * * * *");
    }));
    apply(&machine("open", |spec| spec["schedule"]["cron"] = json!("* * * * *")));

    check(
        &plane,
        &["get"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON
        closed - closed opens in TIME (Tue 23:59 CET) - -
        invalid - invalid - - -
        killed - closed - - -
        lost - open never - -
        open - open never - -
        exit 0
    "#]],
    );
    check(
        &plane,
        &["get", "-A", "-o", "wide", "open"],
        &expect![[r#"
        NAMESPACE NAME PHASE WINDOW NEXT NODE REASON CLUSTER PRIORITY INSTANCE MESSAGE
        default open - open never - - lab 50 - -
        exit 0
    "#]],
    );
    check(
        &plane,
        &["get", "nobody"],
        &expect![[r#"
        5spot: there is no ScheduledMachine nobody in namespace default
        exit 2
    "#]],
    );
    explained(&plane);
    explained_out(&plane);
    explained_unprepared(&plane);
    explained_returned(&plane);

    // For scripts: whole objects, with the embedded specs.
    let output = run(&plane, &["get", "open", "-o", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["items"][0]["spec"]["infrastructureSpec"]["spec"]["address"], "open.example");
    let yaml = String::from_utf8(run(&plane, &["get", "open", "-o", "yaml"]).stdout).unwrap();
    let yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(yaml, list);
    let explained: Value =
        serde_json::from_slice(&run(&plane, &["explain", "lost", "-o", "json"]).stdout).unwrap();
    assert_eq!(explained["waiting"]["reason"], "ClusterNotFound");
    assert_eq!(explained["actions"], json!([]));

    // It looks and never writes.
    let audit = plane.management().audit().unwrap();
    let ours: Vec<_> = audit.iter().filter(|entry| entry.user_agent.starts_with("5spot-cli/")).collect();
    assert!(!ours.is_empty());
    for entry in ours {
        assert!(["get", "list", "watch"].contains(&entry.verb.as_str()), "{entry:?}");
    }

    kubectl(&["delete", "crd", "scheduledmachines.5spot.finos.org"], "");
    check(
        &plane,
        &["get"],
        &expect![[r#"
        5spot: could not read ScheduledMachines: the server does not serve this kind (404): what defines it is not installed
        exit 2
    "#]],
    );
}

/// Each machine, as the controller would see it.
fn explained(plane: &ControlPlane) {
    check(
        plane,
        &["explain", "open"],
        &expect![[r#"
        default/open: Pending
        The Machine is being created

        window open for ever; cron * * * * * in Europe/Zurich
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving

        does add the finalizer
        does ask the server whether it would create the infrastructure object
        does create the bootstrap object
        does create the infrastructure object
        does create the Machine
        waits Provisioning: The Machine is being created
        changes when something around it changes
        exit 0
    "#]],
    );
    check(
        plane,
        &["explain", "closed"],
        &expect![[r#"
        default/closed: Inactive
        Outside the time window: the machine is with its owner

        window closed until Tue 2028-02-29 23:59 CET (in TIME); cron 59 23 29 feb * in Europe/Zurich
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving

        does ask the server whether it would create the bootstrap object
        does ask the server whether it would create the infrastructure object
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
    check(
        plane,
        &["explain", "invalid"],
        &expect![[r#"
            default/invalid: Error
            spec.schedule.timezone: "Mars/Olympus" is not a time zone of the IANA database: write a name such as Europe/Zurich or UTC. What runs is left alone until this is mended

            window cannot be read: spec.schedule.timezone: "Mars/Olympus" is not a time zone of the IANA database: write a name such as Europe/Zurich or UTC
            cluster lab: is there
            bootstrap none
            infra none
            machine none
            node none
            taints NoNodeYet: There is no Node, or it is leaving

            does nothing now
            waits InvalidSpec: spec.schedule.timezone: "Mars/Olympus" is not a time zone of the IANA database: write a name such as Europe/Zurich or UTC. What runs is left alone until this is mended
            changes when something around it changes
            exit 1
        "#]],
    );
}

/// Those that are told to stay out, or have nowhere to go.
fn explained_out(plane: &ControlPlane) {
    check(
        plane,
        &["explain", "killed"],
        &expect![[r#"
        default/killed: Terminated
        The kill switch is set: the machine stays out until it is false

        window closed until Tue 2028-02-29 23:59 CET (in TIME); cron 59 23 29 feb * in Europe/Zurich
        order spec.killSwitch is true: out at once, and out it stays
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving

        does ask the server whether it would create the bootstrap object
        does ask the server whether it would create the infrastructure object
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
    check(
        plane,
        &["explain", "lost"],
        &expect![[r#"
        default/lost: Pending
        The Cluster that spec.clusterName names is not in this namespace: nothing is created until it is

        window open for ever; cron * * * * * in Europe/Zurich
        cluster nowhere: not found
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving
        prepared no, ClusterNotFound, as said above

        does nothing now
        waits ClusterNotFound: The Cluster that spec.clusterName names is not in this namespace: nothing is created until it is
        changes when something around it changes
        exit 0
    "#]],
    );
    check(
        plane,
        &["explain", "nobody"],
        &expect![[r#"
        5spot: there is no ScheduledMachine nobody in namespace default
        exit 2
    "#]],
    );
    check(
        plane,
        &["get", "--kubeconfig", "/nowhere"],
        &expect![[r#"
        5spot: could not use --kubeconfig /nowhere: No such file or directory (os error 2)
        exit 2
    "#]],
    );

    // What is behind a proxy is not reached by another way.
    let config = fs::read_to_string(plane.management().kubeconfig_path()).unwrap();
    let mut config: Value = serde_saphyr::from_str(&config).unwrap();
    config["clusters"][0]["cluster"]["proxy-url"] = json!("http://127.0.0.1:9");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), config.to_string()).unwrap();
    let output = run(plane, &["get", "--kubeconfig", file.path().to_str().unwrap()]);
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "5spot: could not use --kubeconfig {}: its cluster {} names a proxy-url, which is not supported\n",
            file.path().display(),
            config["clusters"][0]["name"].as_str().unwrap()
        )
    );
    assert_eq!(output.status.code(), Some(2));
}

/// A machine out of its window that could not be lent.
fn explained_unprepared(plane: &ControlPlane) {
    let unprepared = machine("unprepared", |spec| spec["clusterName"] = json!("nowhere"));
    plane.kubectl(plane.management(), &["apply", "-f", "-"], &unprepared.to_string()).unwrap();
    check(
        plane,
        &["explain", "unprepared"],
        &expect![[r#"
        default/unprepared: Inactive
        Outside the time window: the machine is with its owner

        window closed until Tue 2028-02-29 23:59 CET (in TIME); cron 59 23 29 feb * in Europe/Zurich
        cluster nowhere: not found
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving
        prepared no, ClusterNotFound: The Cluster that spec.clusterName names is not in this namespace

        does nothing now
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
}

/// A machine that was handed back, while no Node has the name of its host, another host's has, and its own.
fn explained_returned(plane: &ControlPlane) {
    let mut returned = machine("returned", |_| {});
    let host = json!({"nodeName": "lab-desk", "machineID": "0001", "systemUUID": ""});
    returned["metadata"]["annotations"] = json!({"5spot.finos.org/lent-host": host.to_string()});
    plane.kubectl(plane.management(), &["apply", "-f", "-"], &returned.to_string()).unwrap();
    check(
        plane,
        &["explain", "returned"],
        &expect![[r#"
        default/returned: Inactive
        Outside the time window: the machine is with its owner

        window closed until Tue 2028-02-29 23:59 CET (in TIME); cron 59 23 29 feb * in Europe/Zurich
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving

        does ask the server whether it would create the bootstrap object
        does ask the server whether it would create the infrastructure object
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
    let node = |machine_id: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "lab-desk"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {
                "machineID": machine_id, "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            }},
        })
    };
    let workload = |args: &[&str], input: &str| plane.kubectl(plane.workload(), args, input).unwrap();
    workload(&["create", "-f", "-"], &node("0002").to_string());
    check(
        plane,
        &["explain", "returned"],
        &expect![[r#"
        default/returned: Inactive
        Outside the time window: the machine is with its owner

        window closed until Tue 2028-02-29 23:59 CET (in TIME); cron 59 23 29 feb * in Europe/Zurich
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node lab-desk: Ready; seen through its kubeconfig Secret
        host SameNameOnly: Node lab-desk has the name of the Node that was lent, and another machine id: it is taken for another host and not touched. If it is the same host, clean it and delete the Node
        taints NoNodeYet: There is no Node, or it is leaving

        does ask the server whether it would create the bootstrap object
        does ask the server whether it would create the infrastructure object
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
    workload(&["delete", "node", "lab-desk"], "");
    workload(&["create", "-f", "-"], &node("0001").to_string());
    check(
        plane,
        &["explain", "returned"],
        &expect![[r#"
        default/returned: ShuttingDown
        The host is not with its owner yet: Node lab-desk is in the cluster without a Machine, so the provider did not clean the host up. On the host run what the provider would have run (for k0s: k0s stop, k0s reset, reboot), then kubectl delete node lab-desk. It is drained now

        window closed until Tue 2028-02-29 23:59 CET (in TIME); cron 59 23 29 feb * in Europe/Zurich
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node lab-desk: Ready; seen through its kubeconfig Secret
        host NodeWithoutMachine, as said above
        taints NoNodeYet: There is no Node, or it is leaving

        does nothing now
        waits HostNotCleaned: The host is not with its owner yet: Node lab-desk is in the cluster without a Machine, so the provider did not clean the host up. On the host run what the provider would have run (for k0s: k0s stop, k0s reset, reboot), then kubectl delete node lab-desk. It is drained now
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
    workload(&["delete", "node", "lab-desk"], "");
}
