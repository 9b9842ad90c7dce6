//! Texts that others write on Machines, Nodes and requests, and that an API server answers, with the real controller at
//! work: none of them reaches status, events, the controller's log or a terminal as it is.

use crate::taken_back::{World, always};
use crate::{machine, run};
use fivespot_core::text::is_hidden;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// Clears the screen, forges a line, moves the cursor up and turns the rest around.
const HOSTILE: &str = "no\u{1b}[2J\ndesk   Active   open\u{9b}1A\u{202e}\u{200b}x";

const SHOWN: &str = r"no\u{1b}[2J\ndesk   Active   open\u{9b}1A\u{202e}\u{200b}x";

/// The same in the condition of a Node or a Machine, whose lines 5-Spot joins.
const JOINED: &str = r"no\u{1b}[2J; desk   Active   open\u{9b}1A\u{202e}\u{200b}x";

impl World {
    fn log(&self) -> PathBuf {
        self.plane.management().kubeconfig_path().with_file_name("logs").join("controller.log")
    }

    /// Events about ScheduledMachines.
    fn events(&self) -> String {
        self.kubectl(&["get", "events.events.k8s.io", "-o", "json"])
    }

    /// Looks wherever people look. Everything is printable, and `shown` is there.
    fn looks_harmless(&self, name: &str, shown: &str) {
        let status = self.read(name)["status"].clone();
        assert_printable(&status);
        assert!(texts(&status).iter().any(|text| text.contains(shown)), "{status:#}");
        let events: Value = serde_json::from_str(&self.events()).unwrap();
        for event in events["items"].as_array().unwrap() {
            assert_printable(&event["note"]);
        }
        for args in [&["get"][..], &["get", "-A", "-o", "wide"], &["explain", name], &["get", "-o", "json"]] {
            let output = run(&self.plane, args);
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(!text.contains(|c| c != '\n' && is_hidden(c)), "{args:?}: {text:?}");
            let forged = text.lines().filter(|line| line.starts_with("desk   Active   open")).count();
            assert_eq!(forged, 0, "{args:?}: {text}");
        }
        let wide = run(&self.plane, &["get", "-o", "wide"]).stdout;
        let wide = String::from_utf8(wide).unwrap();
        assert_eq!(wide.lines().count(), 1 + self.machines(), "{wide}");
        assert!(wide.contains(shown), "{wide}");
        let log = fs::read_to_string(self.log()).unwrap();
        assert!(!log.contains(|c| c != '\n' && is_hidden(c)), "{log:?}");
    }

    fn machines(&self) -> usize {
        self.kubectl(&["get", "sm", "-o", "name"]).lines().count()
    }

    fn tells(&self, name: &str, shown: &str) {
        self.until(name, shown, |status| texts(status).iter().any(|text| text.contains(shown)));
    }
}

/// Every text in a value.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => fields.values().flat_map(texts).collect(),
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::String(text) => vec![text],
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

fn assert_printable(value: &Value) {
    for text in texts(value) {
        assert!(!text.contains(is_hidden), "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_of_others_is_obeyed_wherever_people_look() {
    let world = World::start().await;
    world.apply(&machine("desk", always), &[]);
    world.until_phase("desk", "Active");
    let node = world.hosts.node_name("desk");
    let condition = |is_ready: &str, message: &str| {
        let now = "2026-11-16T03:00:00Z";
        json!({"status": {"conditions": [{
            "type": "Ready", "status": is_ready, "reason": "Hostile", "message": message,
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        }]}})
    };
    let patch = |args: &[&str], patch: &Value| {
        let patch = patch.to_string();
        world.kubectl(&[&["patch"], args, &["--type=merge", "-p", &patch]].concat());
    };
    let on_node = |is_ready: &str, message: &str| {
        let change = condition(is_ready, message).to_string();
        world.kubectl(&["patch", "node", &node, "--subresource=status", "--type=strategic", "-p", &change]);
    };

    // A kubelet's condition.
    on_node("False", HOSTILE);
    world.tells("desk", JOINED);
    world.looks_harmless("desk", JOINED);
    on_node("True", "");
    world.until_phase("desk", "Active");

    // Cluster API's condition.
    let machines = "machines.cluster.x-k8s.io";
    let mut conditions: Value =
        serde_json::from_str(&world.kubectl(&["get", machines, "desk", "-o", "json"])).unwrap();
    let conditions = conditions["status"]["conditions"].take();
    let mut hostile = conditions.as_array().unwrap().clone();
    for condition in &mut hostile {
        condition["message"] = json!(HOSTILE);
    }
    patch(&[machines, "desk", "--subresource=status"], &json!({"status": {"conditions": hostile}}));
    world.tells("desk", JOINED);
    assert_printable(&world.read("desk")["status"]);

    // A request that was not asked for: it is taken off again, whatever stands in it.
    patch(&["sm", "desk"], &json!({"spec": {"killIfCommands": null}}));
    let request = |at: &str| {
        json!({"metadata": {"annotations": {
            "5spot.finos.org/reclaim-requested": "true",
            "5spot.finos.org/reclaim-reason": HOSTILE,
            "5spot.finos.org/reclaim-requested-at": at,
        }}})
    };
    patch(&["node", &node], &request(HOSTILE));
    let has_request = || world.kubectl(&["get", "node", &node, "-o", "json"]).contains("reclaim-requested");
    world.until("desk", "without a request on its Node", |_| !has_request());
    assert!(world.events().contains("ReclaimRequestIgnored"));

    // A request by hand: its reason stays until somebody resumes the machine.
    patch(&["sm", "desk"], &request(HOSTILE));
    world.until_phase("desk", "Disabled");
    world.looks_harmless("desk", SHOWN);
    let events = world.events();
    assert!(events.contains("EmergencyReclaimDisabledSchedule"), "{events}");
    let resumed = String::from_utf8(run(&world.plane, &["resume", "desk"]).stdout).unwrap();
    assert!(resumed.contains(&format!("taken back  {SHOWN}\n")), "{resumed}");

    // A Machine in the way, with an owner of a kind that nobody serves: its name is any text.
    let owner = json!({"apiVersion": "hostile.example/v1", "kind": "Thing", "name": HOSTILE, "uid": "1"});
    world.apply(&foreign_machine("taken", &owner), &[]);
    world.apply(&machine("taken", always), &[]);
    world.until_phase("taken", "Error");
    world.looks_harmless("taken", SHOWN);
    let is_told = || {
        let events: Value = serde_json::from_str(&world.events()).unwrap();
        let said = |event: &Value| event["note"].as_str().is_some_and(|note| note.contains(SHOWN));
        events["items"].as_array().unwrap().iter().any(|it| it["regarding"]["name"] == "taken" && said(it))
    };
    world.until("taken", "told by an event", |_| is_told());

    // The answer of the API server, in the words of somebody's policy.
    refuse_machines(&world);
    world.apply(&machine("refused", always), &[]);
    let refusal = r"denied\u{1b}[2J\u{202e}";
    world.until("refused", "refused", |status| status["phase"] == "Error");
    world.looks_harmless("refused", refusal);
    let log = fs::read_to_string(world.log()).unwrap();
    assert!(log.contains(refusal), "{log}");
}

/// A Machine that is not ours.
fn foreign_machine(name: &str, owner: &Value) -> Value {
    let infrastructure =
        json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "RemoteMachine", "name": "none"});
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {
            "clusterName": "lab",
            "bootstrap": {"dataSecretName": "none"},
            "infrastructureRef": infrastructure,
        },
    })
}

/// A policy that lets no Machine in, and says so in words of its own. Line breaks are refused by the server itself.
fn refuse_machines(world: &World) {
    let name = "hostile-words";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["cluster.x-k8s.io"], "apiVersions": ["*"],
                "operations": ["CREATE"], "resources": ["machines"],
            }]},
            "validations": [{"expression": "false", "message": "denied\u{1b}[2J\u{202e}"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    world.apply(&policy, &[]);
    world.apply(&binding, &[]);
    // A policy is in force some moments after it is stored.
    let trial =
        foreign_machine("trial", &json!({"apiVersion": "a/v1", "kind": "A", "name": "a", "uid": "1"}));
    let create = ["create", "--dry-run=server", "-f", "-"];
    let is_refused = || {
        let answer = world.plane.kubectl(world.plane.management(), &create, &trial.to_string());
        answer.is_err_and(|error| error.to_string().contains("denied"))
    };
    world.until("desk", "without a way in for Machines", |_| is_refused());
}
