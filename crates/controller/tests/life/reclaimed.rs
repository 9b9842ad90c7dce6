//! The owner takes the machine back: by a request on the Node, as the agent writes it, or by hand.

use crate::harness::{CLOSED, CLUSTER, OPEN, World, is, message};
use crate::look::{CLUSTER_API, History, OURS};
use crate::stage::{own_world, scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{AuditEntry, Fault, eventually};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;

scenarios![
    the_seven_steps_come_in_their_order,
    a_tool_that_enables_it_again_and_again_is_held_off,
    whoever_enables_it_by_hand_gets_it_back,
    a_stored_manifest_does_not_release_a_hold,
    a_drain_under_way_gets_urgent,
    a_deletion_does_not_slow_it_down,
    a_paused_cluster_is_drained_and_the_rest_follows,
    a_request_of_another_day_is_taken_off,
    only_the_word_true_asks,
    a_request_that_nobody_declared_is_ignored_and_reported,
    by_hand_it_works_without_any_program,
    a_policy_that_forbids_to_disable_leaves_the_hold,
    the_agent_is_told_and_armed_and_let_go,
    three_times_in_ten_minutes_is_worth_a_warning,
    a_spec_that_cannot_be_read_does_not_stop_it,
];

const REQUESTED: &str = "5spot.finos.org/reclaim-requested";
const REASON: &str = "5spot.finos.org/reclaim-reason";
const REQUESTED_AT: &str = "5spot.finos.org/reclaim-requested-at";
const LABEL: &str = "5spot.finos.org/reclaim-agent";
const ARMED_FOR: &str = "5spot.finos.org/reclaim-armed-for";
const RESUME: &str = "5spot.finos.org/resume";

fn programs(spec: &mut Value) {
    spec["killIfCommands"] = json!(["idea", "java"]);
}

impl World {
    /// A machine in its window whose agent is armed.
    pub(crate) async fn lend_armed(&self, name: &str) {
        self.lend(name, programs).await;
        self.until_armed(name).await;
    }

    /// Waits until the machine is with its owner, and looks at everything that must be so then.
    pub(crate) async fn until_taken_back(&self, name: &str) -> ScheduledMachine {
        let machine = self.until_phase(name, "Disabled").await;
        self.nothing_is_left(name).await;
        let reclaim = machine.status.as_ref().unwrap().reclaim.clone().unwrap();
        assert!(reclaim.hold && reclaim.machine_deleted, "{reclaim:?}");
        assert!(!self.tells_agent(name).await, "the agent is told nothing any more");
        machine
    }

    fn configs(&self) -> Api<ConfigMap> {
        Api::namespaced(self.workload.clone(), "5spot-system")
    }

    pub(crate) async fn tells_agent(&self, name: &str) -> bool {
        let config = format!("reclaim-agent-{}", self.hosts.node_name(name));
        self.configs().get_opt(&config).await.unwrap().is_some()
    }

    async fn agent_config(&self, name: &str) -> String {
        let config = format!("reclaim-agent-{}", self.hosts.node_name(name));
        let config = self.configs().get(&config).await.unwrap();
        config.data.unwrap()["reclaim.toml"].clone()
    }

    async fn pause_cluster(&self, paused: bool) {
        let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
        self.objects("Cluster").patch(CLUSTER, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn is_labelled(&self, name: &str) -> bool {
        let labels = self.node(name).await.metadata.labels.unwrap_or_default();
        labels.get(LABEL).map(String::as_str) == Some("enabled")
    }

    /// What the controller wrote to either cluster about this machine, in the order of the API servers' clocks.
    pub(crate) fn writes(&self, name: &str, since: Timestamp) -> Vec<AuditEntry> {
        let (node, config) =
            (self.hosts.node_name(name), format!("reclaim-agent-{}", self.hosts.node_name(name)));
        let of_machine = |it: &AuditEntry| it.namespace == self.namespace && it.name == name;
        let of_node = |it: &AuditEntry| it.name == node || it.name == config;
        // Pods are named after their machine; those of other machines live beside them.
        let pods = |it: &AuditEntry| {
            let number = it.name.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
            it.resource == "pods" && it.namespace == self.namespace && number.is_some()
        };
        let is_write = |it: &AuditEntry| {
            let reads = ["get", "list", "watch"].contains(&it.verb.as_str());
            it.at >= since && it.user_agent.starts_with(OURS) && !reads && it.code < 300
        };
        let mut all = self.plane.management().audit().unwrap();
        if !std::ptr::eq(self.plane.workload(), self.plane.management()) {
            all.extend(self.plane.workload().audit().unwrap());
        }
        all.retain(|it| is_write(it) && (of_machine(it) || of_node(it) || pods(it)));
        all.sort_by_key(|it| it.at);
        all
    }
}

/// One write in a word.
pub(crate) fn step(entry: &AuditEntry) -> String {
    let resource = match (entry.resource.as_str(), entry.subresource.as_str()) {
        (resource, "") => resource.to_owned(),
        (resource, sub) => format!("{resource}/{sub}"),
    };
    format!("{} {resource}", entry.verb)
}

async fn the_seven_steps_come_in_their_order() {
    let world = world().await;
    world.lend_armed("eject").await;
    for number in 0..20 {
        let pod = format!("eject-{number}");
        if number % 5 == 0 {
            world.held_pod("eject", &pod).await;
        } else {
            world.pod("eject", &pod, |_| {}).await;
        }
    }
    let history = History::of(world, "eject").await;
    let since = Timestamp::now();
    // The Node stays until the last step was taken on it.
    world.hosts.set("eject", Fault::FinalizerStays);
    world.ask_back("eject").await;
    eventually("the request is taken off", async || {
        world.node_annotation("eject", REQUESTED).await.is_none()
    })
    .await;
    world.hosts.reset("eject");
    let machine = world.until_taken_back("eject").await;
    assert!(!machine.spec.schedule.enabled);
    assert!(is(&machine, "Ready", "True", "ScheduleDisabled"));
    assert!(is(&machine, "Scheduled", "False", "EmergencyReclaimDisabledSchedule"));
    let text = message(&machine);
    for part in ["process-match: idea", "5spot resume eject", RESUME] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    for reason in ["EmergencyReclaim", "EmergencyReclaimDisabledSchedule"] {
        assert_eq!(world.count_events("eject", reason).await, 1, "{reason}");
    }
    let hurrying = history.in_phase("EmergencyRemove").await;
    let first = hurrying.first().unwrap().status.as_ref().unwrap().reclaim.as_ref().unwrap();
    assert_eq!(first.reason.as_deref(), Some("process-match: idea"));
    assert!(!first.hold && !first.disabled && !first.machine_deleted, "the first write only remembers");

    let writes = world.writes("eject", since);
    let told: Vec<String> = writes
        .iter()
        .map(|it| format!("{:>5} ms {} {}", it.at.duration_since(since).as_millis(), step(it), it.name))
        .collect();
    println!("{}", told.join("\n"));
    let place = |wanted: &str, last: bool| {
        let mut found =
            writes.iter().enumerate().filter(|(_, it)| step(it) == wanted).map(|(place, _)| place);
        let place = if last { found.next_back() } else { found.next() };
        place.unwrap_or_else(|| panic!("no {wanted} in\n{}", told.join("\n")))
    };
    let recorded = place("patch scheduledmachines/status", false);
    let killed = (place("delete pods", false), place("delete pods", true));
    let deleted = place("delete machines", false);
    let disabled = place("patch scheduledmachines", false);
    let disarmed = place("delete configmaps", false);
    let between = writes[disabled..disarmed].iter().any(|it| step(it) == "patch nodes");
    assert!(!between, "the agent is disarmed before the request is taken off\n{}", told.join("\n"));
    let cleared = place("patch nodes", true);
    let steps = [recorded, killed.0, killed.1, deleted, disabled, disarmed, cleared];
    assert!(steps.is_sorted() && recorded < killed.0, "{steps:?} in\n{}", told.join("\n"));
    assert_eq!(writes.iter().filter(|it| step(it) == "patch scheduledmachines").count(), 1, "disabled once");
    assert_eq!(writes.iter().filter(|it| step(it) == "delete pods").count(), 20);
    let asked = |it: &AuditEntry| it.subresource == "eviction" && it.user_agent.starts_with(CLUSTER_API);
    let evicted = world.pod_requests("eject-1").iter().any(asked);
    assert!(!evicted, "Cluster API begins no drain of its own");

    // It stays out, and comes back when it is resumed.
    let id = machine.status.unwrap().reclaim.unwrap().id.unwrap();
    let resume = json!({"metadata": {"annotations": {RESUME: id}}, "spec": {"schedule": {"enabled": true}}});
    world.patch("eject", resume).await;
    let machine = world.until_phase("eject", "Active").await;
    let reclaim = machine.status.unwrap().reclaim.unwrap();
    assert!(!reclaim.hold && reclaim.accepted_at.is_none(), "{reclaim:?}");
    world.until_armed("eject").await;
}

/// Writes `enabled: true` as a tool does that applies what is in its repository.
async fn apply_as(world: &World, name: &str, manager: &str) {
    let mut object = world.machine(name, OPEN);
    object["spec"]["schedule"]["enabled"] = json!(true);
    object["spec"]["killIfCommands"] = json!(["idea", "java"]);
    let params = PatchParams::apply(manager).force();
    world.machines().patch(name, &params, &Patch::Apply(object)).await.unwrap();
}

async fn a_tool_that_enables_it_again_and_again_is_held_off() {
    let world = world().await;
    apply_as(world, "git", "kustomize-controller").await;
    world.until_phase("git", "Active").await;
    world.until_armed("git").await;
    let since = Timestamp::now();
    world.ask_back("git").await;
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        apply_as(world, "git", "kustomize-controller").await;
    }
    let machine = world.until_reason("git", "ReclaimHold").await;
    assert!(machine.spec.schedule.enabled);
    assert!(is(&machine, "Scheduled", "False", "ReclaimHold"));
    assert!(message(&machine).contains("5spot resume git"), "{}", message(&machine));
    world.nothing_is_left("git").await;
    let writes = world.writes("git", since);
    assert_eq!(writes.iter().filter(|it| step(it) == "patch scheduledmachines").count(), 1, "disabled once");
    // What kubectl writes now changes nothing, and nobody can see it.
    world.patch("git", json!({"spec": {"schedule": {"enabled": true}}})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.nothing_is_left("git").await;
    let id = world.status("git").await.reclaim.unwrap().id.unwrap();
    world.patch("git", json!({"metadata": {"annotations": {RESUME: "another"}}})).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.until_phase("git", "Disabled").await;
    world.patch("git", json!({"metadata": {"annotations": {RESUME: id}}})).await;
    world.until_phase("git", "Active").await;
}

async fn whoever_enables_it_by_hand_gets_it_back() {
    let world = world().await;
    world.lend_armed("by-hand").await;
    world.ask_back("by-hand").await;
    world.until_taken_back("by-hand").await;
    world.patch("by-hand", json!({"spec": {"schedule": {"enabled": true}}})).await;
    let machine = world.until_phase("by-hand", "Active").await;
    assert!(!machine.status.unwrap().reclaim.unwrap().hold);
}

async fn a_stored_manifest_does_not_release_a_hold() {
    let world = world().await;
    let mut manifest = world.machine("stored", OPEN);
    manifest["spec"]["schedule"]["enabled"] = json!(true);
    manifest["spec"]["killIfCommands"] = json!(["idea"]);
    let manifest = manifest.to_string();
    let kubectl = async |args: &[&str]| world.kubectl(args, &manifest).await.unwrap();
    kubectl(&["apply", "-f", "-"]).await;
    world.until_phase("stored", "Active").await;
    world.until_armed("stored").await;
    world.ask_back("stored").await;
    world.until_taken_back("stored").await;
    let disable = json!({"spec": {"schedule": {"enabled": false}}});
    for args in [
        ["apply", "-f", "-"].as_slice(),
        &["apply", "--server-side", "--force-conflicts", "-f", "-"],
        &["apply", "--server-side", "--force-conflicts", "--field-manager=somebody", "-f", "-"],
        &["replace", "-f", "-"],
    ] {
        kubectl(args).await;
        let machine = world.until_reason("stored", "ReclaimHold").await;
        assert!(machine.spec.schedule.enabled, "{args:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.nothing_is_left("stored").await;
        // Somebody sees it and disables it again: that releases nothing.
        world.patch("stored", disable.clone()).await;
        world.until_reason("stored", "ScheduleDisabled").await;
    }
    // From false to true by hand.
    kubectl(&["patch", "sm", "stored", "--type=merge", "-p", r#"{"spec":{"schedule":{"enabled":true}}}"#])
        .await;
    world.until_phase("stored", "Active").await;
}

async fn a_drain_under_way_gets_urgent() {
    let world = world().await;
    world.lend_armed("hurry").await;
    world.held_pod("hurry", "hurry-web").await;
    world.close("hurry").await;
    world.until_blocked("hurry").await;
    assert!(world.is_labelled("hurry").await, "the owner may be in a hurry while it drains");
    world.ask_back("hurry").await;
    world.until_taken_back("hurry").await;
    assert_eq!(world.pod_deletions("hurry-web", OURS), 1);
}

async fn a_deletion_does_not_slow_it_down() {
    let world = world().await;
    world.lend_armed("delete-eject").await;
    world.held_pod("delete-eject", "delete-eject-web").await;
    world.ask_back("delete-eject").await;
    world
        .until("delete-eject", "being taken back", |it| {
            it.status.as_ref().is_some_and(|status| status.reclaim.is_some())
        })
        .await;
    world.delete("delete-eject", &DeleteParams::default()).await;
    world.until_all_gone("delete-eject").await;
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("delete-eject-web", OURS), nobody);
    assert!(!world.tells_agent("delete-eject").await);
}

async fn a_paused_cluster_is_drained_and_the_rest_follows() {
    let world = own_world("reclaim-paused").await;
    world.lend_armed("halt").await;
    world.held_pod("halt", "halt-web").await;
    world.pause_cluster(true).await;
    world.until_reason("halt", "Paused").await;
    world.ask_back("halt").await;
    let machine = world.until_phase("halt", "EmergencyRemove").await;
    let reclaim = machine.status.unwrap().reclaim.unwrap();
    assert!(!reclaim.hold && !reclaim.disabled);
    world.until_gone(&world.pods(), "halt-web").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let machine = world.until_phase("halt", "EmergencyRemove").await;
    assert!(machine.spec.schedule.enabled, "no spec is written while paused");
    assert_eq!(world.capi_machine("halt").await.metadata.deletion_timestamp, None);
    assert_eq!(world.node_annotation("halt", REQUESTED).await.as_deref(), Some("true"));
    world.pause_cluster(false).await;
    world.until_taken_back("halt").await;
}

/// A kubelet registers an old Node as it was.
async fn a_request_of_another_day_is_taken_off() {
    let world = world().await;
    let annotations = json!({
        REQUESTED: "true", REASON: "process-match: idea", REQUESTED_AT: "2026-01-01T00:00:00Z",
        ARMED_FOR: "the-machine-of-yesterday",
    });
    let id = world.hosts.provider_id("yesterday");
    let node = json!({
        "metadata": {
            "name": world.hosts.node_name("yesterday"), "annotations": annotations, "labels": {LABEL: "enabled"},
        },
        "spec": {"providerID": id},
    });
    world.nodes().create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    world.create("yesterday", CLOSED, programs).await;
    world.open("yesterday").await;
    world.until_phase("yesterday", "Active").await;
    world.until_armed("yesterday").await;
    assert_eq!(world.node_annotation("yesterday", REQUESTED).await, None);
    let uid = world.uid("yesterday").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.is_untouched("yesterday", &uid).await;
    assert!(world.status("yesterday").await.reclaim.is_none());
}

async fn only_the_word_true_asks() {
    let world = world().await;
    world.lend_armed("words").await;
    let uid = world.uid("words").await;
    for word in ["True", "1", "", "yes", " true"] {
        let annotations =
            json!({REQUESTED: word, REASON: "process-match: idea", REQUESTED_AT: "2026-11-16T00:00:00Z"});
        world.patch_node("words", json!({"metadata": {"annotations": annotations}})).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    world.is_untouched("words", &uid).await;
    assert!(world.status("words").await.reclaim.is_none());
}

async fn a_request_that_nobody_declared_is_ignored_and_reported() {
    let world = world().await;
    world.lend("undeclared", |_| {}).await;
    let uid = world.uid("undeclared").await;
    assert!(!world.is_labelled("undeclared").await);
    world.ask_back("undeclared").await;
    eventually("it is reported", async || world.has_event("undeclared", "ReclaimRequestIgnored").await).await;
    eventually("it is taken off", async || world.node_annotation("undeclared", REQUESTED).await.is_none())
        .await;
    world.is_untouched("undeclared", &uid).await;
}

async fn by_hand_it_works_without_any_program() {
    let world = world().await;
    world.lend("hand", |_| {}).await;
    let annotations = json!({REQUESTED: "true", REASON: "by-hand: I need it"});
    world.patch("hand", json!({"metadata": {"annotations": annotations}})).await;
    let machine = world.until_taken_back("hand").await;
    assert!(!machine.spec.schedule.enabled);
    assert!(message(&machine).contains("by-hand: I need it"), "{}", message(&machine));
    eventually("the request is taken off", async || {
        let machine = world.machines().get("hand").await.unwrap();
        !machine.metadata.annotations.unwrap_or_default().contains_key(REQUESTED)
    })
    .await;
    // Out of its window there is nothing to eject, and it is held all the same.
    world.create("hand-out", CLOSED, |_| {}).await;
    world.until_phase("hand-out", "Inactive").await;
    world.patch("hand-out", json!({"metadata": {"annotations": {REQUESTED: "true"}}})).await;
    world.until_taken_back("hand-out").await;
    world.open("hand-out").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.until_taken_back("hand-out").await;
}

async fn a_policy_that_forbids_to_disable_leaves_the_hold() {
    let world = own_world("reclaim-policy").await;
    let name = format!("{}.example.com", world.namespace);
    let policy = json!([
        {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
                    "resourceRules": [{
                        "apiGroups": ["5spot.finos.org"], "apiVersions": ["*"], "operations": ["UPDATE"],
                        "resources": ["scheduledmachines"],
                    }],
                },
                "validations": [{"expression": "object.spec.schedule.enabled == true", "message": "the schedule is ours"}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]);
    world.lend_armed("forbidden").await;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": policy});
    world.kubectl(&["apply", "-f", "-"], &list.to_string()).await.unwrap();
    eventually("the policy stands", async || {
        let patch = Patch::Merge(json!({"spec": {"schedule": {"enabled": false}}}));
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        world.machines().patch("forbidden", &params, &patch).await.is_err()
    })
    .await;
    world.ask_back("forbidden").await;
    let machine = world.until_taken_back("forbidden").await;
    assert!(machine.spec.schedule.enabled);
    assert!(is(&machine, "Scheduled", "False", "ReclaimHold"));
    assert!(message(&machine).contains("the schedule is ours"), "{}", message(&machine));
    let reclaim = machine.status.unwrap().reclaim.unwrap();
    assert!(!reclaim.disabled && reclaim.refused.is_some(), "{reclaim:?}");
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        world.kubectl(&["delete", kind, &name], "").await.unwrap();
    }
}

async fn the_agent_is_told_and_armed_and_let_go() {
    let world = world().await;
    world.lend("agent", |_| {}).await;
    assert!(!world.is_labelled("agent").await && !world.tells_agent("agent").await);
    world.patch("agent", json!({"spec": {"killIfCommands": ["java"]}})).await;
    world.until_armed("agent").await;
    assert!(world.is_labelled("agent").await);
    let text = world.agent_config("agent").await;
    assert_eq!(text.matches("java").count(), 2, "in both lists: {text}");
    world.patch("agent", json!({"spec": {"killIfCommands": ["java", "steam"]}})).await;
    eventually("it is told of both", async || {
        world.agent_config("agent").await.matches("steam").count() == 2
    })
    .await;
    // Somebody deletes or changes what it is told, or its label.
    let config = format!("reclaim-agent-{}", world.hosts.node_name("agent"));
    world.configs().delete(&config, &DeleteParams::default()).await.unwrap();
    eventually("it is told again", async || world.tells_agent("agent").await).await;
    let other = Patch::Merge(json!({"data": {"reclaim.toml": "match_commands = []\n"}}));
    world.configs().patch(&config, &PatchParams::default(), &other).await.unwrap();
    eventually("it is told the right thing", async || world.agent_config("agent").await.contains("steam"))
        .await;
    world.patch_node("agent", json!({"metadata": {"labels": {LABEL: null}}})).await;
    eventually("it is labelled again", async || world.is_labelled("agent").await).await;
    // Nothing to look for any more.
    world.patch("agent", json!({"spec": {"killIfCommands": null}})).await;
    eventually("it is let go", async || {
        !world.is_labelled("agent").await && !world.tells_agent("agent").await
    })
    .await;
    assert_eq!(world.node_annotation("agent", ARMED_FOR).await, None);
    // Every way out.
    for (way, change) in [
        ("the window closes", json!({"spec": {"schedule": {"cron": CLOSED}}})),
        ("it is disabled", json!({"spec": {"schedule": {"enabled": false}}})),
        ("it is killed", json!({"spec": {"killSwitch": true}})),
    ] {
        world
            .patch(
                "agent",
                json!({"spec": {
                    "killIfCommands": ["java"], "killSwitch": false, "schedule": {"cron": OPEN, "enabled": true},
                }}),
            )
            .await;
        world.until_phase("agent", "Active").await;
        world.until_armed("agent").await;
        world.patch("agent", change).await;
        world.nothing_is_left("agent").await;
        eventually(way, async || !world.tells_agent("agent").await).await;
    }
    world.delete("agent", &DeleteParams::default()).await;
    world.until_gone(&world.machines(), "agent").await;
    let params = ListParams::default().labels("5spot.finos.org/scheduled-machine=agent");
    assert!(world.configs().list(&params).await.unwrap().items.is_empty());
}

async fn three_times_in_ten_minutes_is_worth_a_warning() {
    let world = world().await;
    world.lend_armed("rapid").await;
    for round in 1..=3 {
        assert_eq!(world.count_events("rapid", "RapidReReclaim").await, 0, "round {round}");
        world.ask_back("rapid").await;
        let machine = world.until_taken_back("rapid").await;
        let id = machine.status.unwrap().reclaim.unwrap().id.unwrap();
        let resume =
            json!({"metadata": {"annotations": {RESUME: id}}, "spec": {"schedule": {"enabled": true}}});
        world.patch("rapid", resume).await;
        world.until_phase("rapid", "Active").await;
        world.until_armed("rapid").await;
    }
    assert_eq!(world.count_events("rapid", "RapidReReclaim").await, 1);
}

async fn a_spec_that_cannot_be_read_does_not_stop_it() {
    let world = world().await;
    world.lend_armed("bad-eject").await;
    world.patch("bad-eject", json!({"spec": {"schedule": {"timezone": "Mars/Olympus"}}})).await;
    world.until_phase("bad-eject", "Error").await;
    world.ask_back("bad-eject").await;
    world.until_taken_back("bad-eject").await;
}
