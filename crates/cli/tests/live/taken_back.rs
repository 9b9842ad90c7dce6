//! `5spot reclaim` and `5spot resume`, with the real controller at work.

use crate::{check, from_root, machine, run, start};
use expect_test::expect;
use fivespot_testenv::{
    AuditEntry, Behaviour, ControlPlane, Core, Hosts, build_programs, create_cluster, create_ssh_key,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long anything may take that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A control plane with the controller, and hosts that join.
pub(crate) struct World {
    controller: PathBuf,
    pub(crate) plane: ControlPlane,
    pub(crate) hosts: Hosts,
}

impl World {
    pub(crate) async fn start() -> Self {
        // Cargo does not build the programs of another package for these tests.
        let programs = build_programs(&from_root(""), &["5spot-controller"]).unwrap();
        let plane = start().await;
        let world = Self {
            controller: programs.join("5spot-controller"),
            hosts: Hosts::start(&plane, "default", Core::Played, Behaviour::default()).await.unwrap(),
            plane,
        };
        world.kubectl(&["apply", "-f", from_root("deploy/namespace.yaml").to_str().unwrap()]);
        create_cluster(&world.plane, "default", "lab").await.unwrap();
        create_ssh_key(&world.plane, "default").await.unwrap();
        world.start_controller();
        world
    }

    /// One that goes on at once if it was killed: it is known by its pod.
    fn start_controller(&self) {
        let kubeconfig = self.plane.management().kubeconfig_path().to_str().unwrap();
        let args =
            ["--listen-address=127.0.0.1", "--health-port=0", "--metrics-port=0", "--kubeconfig", kubeconfig];
        let args: Vec<String> =
            args.into_iter().chain(["--pod-name=controller-0", "--pod-uid=0"]).map(str::to_owned).collect();
        self.plane.run("controller", &self.controller, &args).unwrap();
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.plane.kubectl(self.plane.management(), args, "").unwrap()
    }

    pub(crate) fn apply(&self, object: &Value, args: &[&str]) {
        let args = [&["apply", "-f", "-"], args].concat();
        self.plane.kubectl(self.plane.management(), &args, &object.to_string()).unwrap();
    }

    fn patch(&self, name: &str, patch: &Value) -> String {
        self.kubectl(&["patch", "sm", name, "--type=merge", "-p", &patch.to_string()])
    }

    pub(crate) fn read(&self, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "sm", name, "-o", "json"])).unwrap()
    }

    /// Waits until status is as it should be.
    pub(crate) fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let machine = self.read(name);
            if holds(&machine["status"]) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "still not {what}: {:#}", machine["status"]);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn until_phase(&self, name: &str, phase: &str) {
        self.until(name, phase, |status| status["phase"] == phase);
    }

    fn until_cordoned(&self, node: &str) {
        let get = ["get", "node", node, "-o", "jsonpath={.spec.unschedulable}"];
        let began = Instant::now();
        while self.kubectl(&get) != "true" {
            assert!(began.elapsed() < PATIENCE, "still not cordoned: {node}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn pause(&self, paused: bool) {
        let patch = json!({"spec": {"paused": paused}}).to_string();
        self.kubectl(&["patch", "clusters.cluster.x-k8s.io", "lab", "--type=merge", "-p", &patch]);
    }

    fn check(&self, args: &[&str], expect: &expect_test::Expect) {
        check(&self.plane, args, expect);
    }
}

pub(crate) fn always(spec: &mut Value) {
    spec["schedule"]["cron"] = json!("* * * * *");
    spec["killIfCommands"] = json!(["idea", "steam"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_taken_back_by_hand_and_lent_again() {
    let world = World::start().await;
    world.apply(&machine("desk", always), &[]);
    world.until_phase("desk", "Active");
    let node = world.hosts.node_name("desk");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "guest"},
        "spec": {"nodeName": node, "containers": [{"name": "guest", "image": "guest"}]},
    });
    world.apply(&pod, &[]);
    let is_armed = || world.kubectl(&["get", "node", &node, "-o", "yaml"]).contains("reclaim-armed-for");
    world.until("desk", "armed", |_| is_armed());

    lent(&world);
    taken_back(&world);
    put_back_by_a_tool(&world);
    resumed(&world);
    under_way(&world);
    refused(&world);

    // Two commands write, and they write nothing else.
    let audit = world.plane.management().audit().unwrap();
    let reads = ["get", "list", "watch"];
    let ours = audit.iter().filter(|it| it.user_agent.starts_with("5spot-cli/"));
    let writes: Vec<_> = ours.filter(|it| !reads.contains(&it.verb.as_str())).collect();
    assert!(!writes.is_empty());
    for it in writes {
        let what = (it.verb.as_str(), it.resource.as_str(), it.subresource.as_str());
        assert_eq!(what, ("patch", "scheduledmachines", ""), "{it:?}");
        assert!(it.uri.contains("fieldManager=5spot-cli"), "{it:?}");
    }
}

fn lent(world: &World) {
    world.check(
        &["get", "desk"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON
        desk Active open never default-desk NodeReady
        exit 0
    "#]],
    );
    world.check(
        &["get", "desk", "-o", "wide"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON CLUSTER PRIORITY INSTANCE MESSAGE
        desk Active open never default-desk NodeReady lab 50 controller-0 The machine is in the cluster and its Node is Ready
        exit 0
    "#]],
    );
    world.check(
        &["explain", "desk"],
        &expect![[r#"
        default/desk: Active
        The machine is in the cluster and its Node is Ready

        window open for ever; cron * * * * * in Europe/Zurich
        cluster lab: is there
        bootstrap is there, for TIME
        infra is there, for TIME
        machine is there, for TIME; Ready
        node default-desk: Ready; seen through its kubeconfig Secret
        node its reclaim agent is to look for idea, steam
        taints Applied: No taints are declared
        agent Starting: Waiting for an agent: there is no pod of the reclaim agent on Node default-desk

        does nothing now
        changes TIME, in TIME, if nothing else happens
        exit 0
    "#]],
    );
    world.check(
        &["resume", "desk"],
        &expect![[r#"
        default/desk: nothing to resume, its owner has not taken it back
        exit 1
    "#]],
    );
}

fn taken_back(world: &World) {
    world.check(
        &["reclaim", "desk", "--reason", "a deadline", "--wait"],
        &expect![[r#"
        default/desk: asked back at once (by-hand: a deadline)
        Node default-desk is cordoned and its pods end without grace, within 60 s; then its Machine is deleted
        spec.schedule.enabled becomes false, and it stays with its owner until: 5spot resume desk -n default
        TIME s accepted by the controller: from here on it finishes
        TIME s pods gone
        TIME s Machine deleted
        TIME s schedule disabled, and held
        TIME s Disabled: nothing of it is left in the cluster
        exit 0
    "#]],
    );
    world.check(
        &["get", "desk"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON
        desk Disabled open until resumed - EmergencyReclaimDisabledSchedule (by-hand: a deadline)
        exit 0
    "#]],
    );
    world.check(&["explain", "desk"], &expect![[r#"
        default/desk: Disabled
        The owner took the machine back (by-hand: a deadline); spec.schedule.enabled was set to false. To lend it again: 5spot resume desk -n default (which annotates it with 5spot.finos.org/resume=ID)

        window open for ever; cron * * * * * in Europe/Zurich
        order held by reclaim ID (by-hand: a deadline): nothing is created, whatever spec.schedule.enabled says, until: 5spot resume desk -n default
        order spec.schedule.enabled was set to false for that reclaim
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving

        does nothing now
        changes when something around it changes
        exit 0
    "#]]);
    world.check(&["reclaim", "desk", "--reason", "once more"], &expect![[r#"
        default/desk is with its owner already: reclaim ID (by-hand: a deadline) holds it, and nothing was asked.
        To lend it again: 5spot resume desk -n default
        exit 1
    "#]]);
    let output = run(&world.plane, &["reclaim", "desk", "--reason", "once more", "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["outcome"], "Held");
}

/// `enabled: true` comes back from a repository, and a person who writes the same changes nothing.
fn put_back_by_a_tool(world: &World) {
    let mut desk = machine("desk", always);
    desk["spec"]["schedule"]["enabled"] = json!(true);
    world.apply(&desk, &["--server-side", "--force-conflicts", "--field-manager=kustomize-controller"]);
    let is_held = |status: &Value| status["conditions"][0]["reason"] == "ReclaimHold";
    world.until("desk", "held", is_held);
    world.check(
        &["get", "desk"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON
        desk Disabled open until resumed - ReclaimHold (by-hand: a deadline)
        exit 0
    "#]],
    );
    world.check(&["explain", "desk"], &expect![[r#"
        default/desk: Disabled
        The owner took the machine back (by-hand: a deadline); spec.schedule.enabled was set to true again, and it is held all the same. To lend it again: 5spot resume desk -n default (which annotates it with 5spot.finos.org/resume=ID)

        window open for ever; cron * * * * * in Europe/Zurich
        order held by reclaim ID (by-hand: a deadline): nothing is created, whatever spec.schedule.enabled says, until: 5spot resume desk -n default
        cluster lab: is there
        bootstrap none
        infra none
        machine none
        node none
        taints NoNodeYet: There is no Node, or it is leaving

        does nothing now
        changes when something around it changes
        exit 0
    "#]]);
    let patched = world.patch("desk", &json!({"spec": {"schedule": {"enabled": true}}}));
    assert_eq!(patched, "scheduledmachine.5spot.finos.org/desk patched (no change)\n");
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_held(&world.read("desk")["status"]), "it is still held");
}

/// A request by hand that nobody has answered yet would begin anew: it goes with the hold.
fn resumed(world: &World) {
    world.plane.stop("controller").unwrap();
    let asked = [
        "reclaim-requested=true",
        "reclaim-reason=by-hand: no, wait",
        "reclaim-requested-at=2026-11-16T00:00:00Z",
    ];
    let asked = asked.map(|it| format!("5spot.finos.org/{it}"));
    world.kubectl(&["annotate", "sm", "desk", &asked[0], &asked[1], &asked[2]]);
    world.check(&["resume", "desk"], &expect![[r#"
        default/desk: lent again by its schedule

        taken back by-hand: a deadline
        when TIME, TIME ago
        node default-desk
        programs idea, steam: whether one still runs is not known here: its agent looks when the machine has joined, and if so it is taken back again
        next its window is open: it joins now
        exit 0
    "#]]);
    let desk = world.read("desk");
    let annotations = desk["metadata"]["annotations"].as_object().unwrap();
    assert!(
        !annotations.keys().any(|name| name.contains("reclaim-re")),
        "nothing is asked any more: {annotations:?}"
    );
    assert_eq!(annotations["5spot.finos.org/resume"], desk["status"]["reclaim"]["id"]);
    world.start_controller();
    world.until_phase("desk", "Active");
    assert_eq!(world.read("desk")["status"]["reclaim"]["hold"], false);
    world.check(
        &["resume", "desk"],
        &expect![[r#"
        default/desk: nothing to resume, it was resumed after its owner had taken it back
        exit 1
    "#]],
    );
}

fn under_way(world: &World) {
    world.pause(true);
    world.until("desk", "paused", |status| status["conditions"][0]["reason"] == "Paused");
    let output = run(&world.plane, &["reclaim", "desk", "--reason", "again", "-o", "yaml"]);
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_saphyr::from_str(&String::from_utf8(output.stdout).unwrap()).unwrap();
    assert_eq!((&said["outcome"], &said["name"]), (&json!("Asked"), &json!("desk")));
    world.until_phase("desk", "EmergencyRemove");
    world.until_cordoned("default-desk");
    world.check(
        &["get", "desk"],
        &expect![[r#"
        NAME PHASE WINDOW NEXT NODE REASON
        desk EmergencyRemove open drain ends in TIME default-desk EmergencyReclaim (by-hand: again)
        exit 0
    "#]],
    );
    world.check(
        &["explain", "desk"],
        &expect![[r#"
        default/desk: EmergencyRemove
        Paused, since the Cluster's spec.paused is true: set it to false to go on

        window open for ever; cron * * * * * in Europe/Zurich
        order reclaim ID (by-hand: again) is under way: it finishes, whatever else is asked
        cluster lab: is paused
        bootstrap is there, for TIME
        infra is there, for TIME
        machine is there, for TIME; Ready
        node default-desk: Ready, cordoned by 5-Spot; seen through its kubeconfig Secret
        node its reclaim agent is to look for idea, steam
        node 0 pods; nothing is left that must go
        taints NoNodeYet: There is no Node, or it is leaving

        does nothing now
        waits Paused: Paused, since the Cluster's spec.paused is true: set it to false to go on
        looks again every TIME
        exit 0
    "#]],
    );
    world.check(&["resume", "desk"], &expect![[r#"
        default/desk is being taken back now: reclaim ID (by-hand: again). Nothing was resumed: wait until it is Disabled, and resume it then
        exit 1
    "#]]);
    world.check(&["reclaim", "desk", "--reason", "again", "--wait", "--timeout", "1s"], &expect![[r#"
        default/desk is being taken back already: reclaim ID (by-hand: again)
        TIME s accepted by the controller: from here on it finishes
        TIME s pods gone
        5spot: default/desk is not with its owner after 1 s: Paused, since the Cluster's spec.paused is true: set it to false to go on. The controller goes on by itself
        exit 2
    "#]]);
    let output = std::thread::scope(|scope| {
        let args = ["reclaim", "desk", "--reason", "again", "--wait", "-o", "json"];
        let since = Timestamp::now();
        let waits = scope.spawn(move || run(&world.plane, &args));
        // It has begun to follow when it has looked at the pods.
        let looked = |it: &AuditEntry| {
            it.user_agent.starts_with("5spot-cli/") && it.resource == "pods" && it.at > since
        };
        let audit = || world.plane.workload().audit().unwrap();
        let began = Instant::now();
        while !audit().iter().any(looked) && !waits.is_finished() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
        world.pause(false);
        waits.join().unwrap()
    });
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let words: Vec<_> =
        said["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect();
    assert_eq!(words, ["Accepted", "PodsGone", "MachineDeleted", "ScheduleDisabled", "Disabled"]);
    let output = run(&world.plane, &["resume", "desk", "-o", "json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["outcome"], &said["reclaim"]["reason"]), (&json!("Resumed"), &json!("by-hand: again")));
    world.until_phase("desk", "Active");
}

/// Where there is nothing to take back, or nobody to ask.
fn refused(world: &World) {
    world.apply(&machine("out", |_| {}), &[]);
    world.until_phase("out", "Inactive");
    world.check(
        &["reclaim", "out", "--reason", "keep it", "--wait"],
        &expect![[r#"
        default/out: asked back at once (by-hand: keep it)
        it is not in the cluster now, and is kept out of it
        spec.schedule.enabled becomes false, and it stays with its owner until: 5spot resume out -n default
        TIME s accepted by the controller: from here on it finishes
        TIME s schedule disabled, and held
        TIME s Disabled: nothing of it is left in the cluster
        exit 0
    "#]],
    );
    world.check(
        &["resume", "out"],
        &expect![[r#"
        default/out: lent again by its schedule

        taken back by-hand: keep it
        when TIME, TIME ago
        next it joins when its window opens, in TIME (Tue 23:59 CET)
        exit 0
    "#]],
    );
    world.until("out", "released", |status| status["reclaim"]["hold"] == false);

    world.patch("desk", &json!({"spec": {"killSwitch": true}}));
    world.check(&["reclaim", "desk", "--reason", "now"], &expect![[r#"
        default/desk: spec.killSwitch is true, so the machine leaves at once or has left, and nothing was asked
        exit 1
    "#]]);
    world.patch(
        "out",
        &json!({"metadata": {"finalizers": ["example.com/stays"]}, "spec": {"schedule": {"enabled": false}}}),
    );
    world.check(
        &["resume", "out"],
        &expect![[r#"
        default/out: nothing to resume, it was resumed after its owner had taken it back.
        Somebody else set spec.schedule.enabled to false: set it to true to lend the machine
        exit 1
    "#]],
    );
    world.kubectl(&["delete", "sm", "out", "--wait=false"]);
    world.check(
        &["reclaim", "out", "--reason", "now"],
        &expect![[r#"
        default/out is being deleted: the machine leaves anyway, and nothing was asked
        exit 1
    "#]],
    );
    world.check(
        &["resume", "out"],
        &expect![[r#"
        default/out is being deleted: there is nothing to resume
        exit 1
    "#]],
    );
    world.patch("out", &json!({"metadata": {"finalizers": null}}));

    world.check(
        &["reclaim", "nobody", "--reason", "now"],
        &expect![[r#"
        5spot: there is no ScheduledMachine nobody in namespace default
        exit 2
    "#]],
    );
    world.check(
        &["resume", "nobody"],
        &expect![[r#"
        5spot: there is no ScheduledMachine nobody in namespace default
        exit 2
    "#]],
    );
    world.check(
        &["reclaim", "desk"],
        &expect![[r#"
        error: the following required arguments were not provided:
        --reason <TEXT>

        Usage: 5spot reclaim --reason <TEXT> <NAME>

        For more information, try '--help'.
        exit 2
    "#]],
    );
    world.check(
        &["reclaim", "desk", "--reason", " "],
        &expect![[r#"
        error: invalid value ' ' for '--reason <TEXT>': say why, in a few words

        For more information, try '--help'.
        exit 2
    "#]],
    );
}

#[test]
fn the_help_says_what_happens_and_what_the_exit_codes_mean() {
    let help = |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_5spot")).args([command, "--help"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split("\nUsage:").next().unwrap().to_owned()
    };
    expect![[r#"
        Take a machine back for its owner, at once and by hand

        The machine is emptied without grace and leaves the cluster, its schedule is disabled, and it stays with its owner until `5spot resume`. This is what happens when a program of spec.killIfCommands starts; by hand it needs neither that list nor the agent.

        Exit codes: 0 it was asked for, or is on its way already; with --wait, it is with its owner. 1 nothing was asked, since it is with its owner already, is being deleted, or its kill switch is set. 2 an error, or it takes longer than --timeout.
    "#]].assert_eq(&help("reclaim"));
    expect![[r#"
        Lend a machine again that its owner took back

        Says why it was taken back, releases the hold and enables the schedule. If a program of spec.killIfCommands still runs on it, it is taken back again as soon as it has joined.

        Exit codes: 0 it is lent again by its schedule, 1 there is nothing to resume, or not yet, 2 an error.
    "#]].assert_eq(&help("resume"));
}
