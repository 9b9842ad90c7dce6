//! Conversion of the provider's objects between v1beta1 and v1beta2, and what its admission webhook refuses.
//!
//! It loses what the real conversion loses: conditions of a RemoteMachine and the reference to custom user data are not
//! in what v1beta1 shows, so a write through v1beta1 removes them.

use serde_json::{Map, Value, json};

/// Answers a ConversionReview.
pub(super) fn review(request: &Value) -> Value {
    let desired = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let converted: Result<Vec<Value>, String> =
        objects.into_iter().map(|object| convert(object, desired)).collect();
    let mut response = match converted {
        Ok(objects) => json!({"convertedObjects": objects, "result": {"status": "Success"}}),
        Err(message) => json!({"result": {"status": "Failure", "message": message}}),
    };
    response["uid"] = request["uid"].clone();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response})
}

/// Answers an AdmissionReview about a K0sWorkerConfig.
pub(super) fn admit(request: &Value) -> Value {
    let version = request["object"]["spec"]["version"].as_str().unwrap_or_default();
    let mut response = json!({"uid": request["uid"], "allowed": !version.contains("-k0s.")});
    if response["allowed"] == false {
        let name = request["name"].as_str().unwrap_or_default();
        let message = format!(
            "K0sWorkerConfig.bootstrap.cluster.x-k8s.io \"{name}\" is invalid: spec.version: Invalid value: \
             \"{version}\": write the k0s version with the suffix '+k0s'"
        );
        response["status"] = json!({"code": 422, "reason": "Invalid", "message": message});
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// One object in the version that is asked for.
fn convert(mut object: Value, desired: &str) -> Result<Value, String> {
    if object["apiVersion"] == desired {
        return Ok(object);
    }
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let version = desired.rsplit('/').next().unwrap_or_default();
    let (spec, status) = (fields(&object["spec"]), fields(&object["status"]));
    let (spec, status) = match (kind.as_str(), version) {
        ("RemoteMachine", "v1beta1") => {
            (machine_spec(spec, "cleanUpCommands", "customCleanUpCommands"), old_machine_status(status))
        }
        ("RemoteMachine", "v1beta2") => {
            (machine_spec(spec, "customCleanUpCommands", "cleanUpCommands"), new_machine_status(status))
        }
        ("K0sWorkerConfig", "v1beta1") => (old_config_spec(spec), old_config_status(status)),
        ("K0sWorkerConfig", "v1beta2") => (new_config_spec(spec), new_config_status(status)),
        (kind, version) => return Err(format!("{kind} has no version {version}")),
    };
    object["apiVersion"] = json!(desired);
    object["spec"] = Value::Object(spec);
    object["status"] = Value::Object(status);
    Ok(object)
}

fn machine_spec(mut spec: Map<String, Value>, from: &str, to: &str) -> Map<String, Value> {
    rename(&mut spec, from, to);
    // The real one keeps the reference in a field that is always there.
    spec.entry("sshKeyRef").or_insert(json!({"name": ""}));
    spec
}

fn old_machine_status(mut status: Map<String, Value>) -> Map<String, Value> {
    let mut old = Map::new();
    keep(&mut old, "addresses", status.remove("addresses"));
    if status.get("initialization").is_some_and(|it| it["provisioned"] == true) {
        old.insert("ready".to_owned(), json!(true));
    }
    let deprecated = status.get("deprecated").map(|it| fields(&it["v1beta1"])).unwrap_or_default();
    for (name, value) in deprecated {
        keep(&mut old, &name, Some(value));
    }
    old
}

fn new_machine_status(mut status: Map<String, Value>) -> Map<String, Value> {
    let mut new = Map::new();
    keep(&mut new, "addresses", status.remove("addresses"));
    let ready = status.get("ready") == Some(&json!(true));
    new.insert("initialization".to_owned(), json!({"provisioned": ready}));
    let mut failure = Map::new();
    for name in ["failureMessage", "failureReason"] {
        keep(&mut failure, name, status.remove(name));
    }
    if !failure.is_empty() {
        new.insert("deprecated".to_owned(), json!({"v1beta1": failure}));
    }
    new
}

/// Fields of a K0sWorkerConfig whose names differ: first in v1beta1, then in v1beta2.
const COMMANDS: [(&str, &str); 2] =
    [("preStartCommands", "preK0sCommands"), ("postStartCommands", "postK0sCommands")];

fn old_config_spec(mut spec: Map<String, Value>) -> Map<String, Value> {
    for (old, new) in COMMANDS {
        rename(&mut spec, new, old);
    }
    let provisioner = spec.remove("provisioner").unwrap_or_default();
    if provisioner["type"] == "ignition" {
        keep(&mut spec, "ignition", provisioner.get("ignition").cloned());
    }
    spec
}

fn new_config_spec(mut spec: Map<String, Value>) -> Map<String, Value> {
    for (old, new) in COMMANDS {
        rename(&mut spec, old, new);
    }
    let mut provisioner = json!({"type": "cloud-config"});
    if let Some(ignition) = spec.remove("ignition") {
        provisioner = json!({"type": "ignition", "ignition": ignition});
    }
    if let Some(reference) = spec.remove("customUserDataRef") {
        provisioner["customUserDataRef"] = reference;
    }
    spec.insert("provisioner".to_owned(), provisioner);
    spec
}

fn old_config_status(mut status: Map<String, Value>) -> Map<String, Value> {
    let initialization = status.remove("initialization").unwrap_or_default();
    if initialization["dataSecretCreated"] == true {
        status.insert("ready".to_owned(), json!(true));
    }
    status
}

fn new_config_status(mut status: Map<String, Value>) -> Map<String, Value> {
    let ready = status.remove("ready") == Some(json!(true));
    status.insert("initialization".to_owned(), json!({"dataSecretCreated": ready}));
    status
}

fn fields(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn rename(fields: &mut Map<String, Value>, from: &str, to: &str) {
    let value = fields.remove(from);
    keep(fields, to, value);
}

fn keep(fields: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts there and back again, and says what is lost.
    fn check(kind: &str, group: &str, old: &Value, new: &Value) {
        let object = |version: &str, rest: &Value| {
            let mut object = rest.clone();
            object["apiVersion"] = json!(format!("{group}/{version}"));
            object["kind"] = json!(kind);
            object["metadata"] = json!({"name": "m", "annotations": {"kept": "yes"}});
            object
        };
        let (old, new) = (object("v1beta1", old), object("v1beta2", new));
        assert_eq!(convert(old.clone(), &format!("{group}/v1beta2")).as_ref(), Ok(&new));
        assert_eq!(convert(new, &format!("{group}/v1beta1")), Ok(old));
    }

    #[test]
    fn a_remote_machine_is_converted_both_ways() {
        let old = json!({
            "spec": {"address": "a", "sshKeyRef": {"name": "k"}, "customCleanUpCommands": ["x"]},
            "status": {"ready": true, "failureReason": "R", "failureMessage": "m"},
        });
        let failure = json!({"failureReason": "R", "failureMessage": "m"});
        let new = json!({
            "spec": {"address": "a", "sshKeyRef": {"name": "k"}, "cleanUpCommands": ["x"]},
            "status": {"initialization": {"provisioned": true}, "deprecated": {"v1beta1": failure}},
        });
        check("RemoteMachine", "infrastructure.cluster.x-k8s.io", &old, &new);
    }

    #[test]
    fn a_worker_config_is_converted_both_ways() {
        let ignition = json!({"variant": "fcos", "version": "1.5.0"});
        let old = json!({
            "spec": {"preStartCommands": ["a"], "postStartCommands": ["b"], "ignition": ignition},
            "status": {"ready": true, "dataSecretName": "m"},
        });
        let new = json!({
            "spec": {
                "preK0sCommands": ["a"], "postK0sCommands": ["b"],
                "provisioner": {"type": "ignition", "ignition": ignition},
            },
            "status": {"initialization": {"dataSecretCreated": true}, "dataSecretName": "m"},
        });
        check("K0sWorkerConfig", "bootstrap.cluster.x-k8s.io", &old, &new);
    }

    #[test]
    fn what_v1beta1_cannot_show_is_lost() {
        let convert = |kind: &str, spec: Value, status: Value| {
            let object = json!({"apiVersion": "g/v1beta2", "kind": kind, "spec": spec, "status": status});
            convert(object, "g/v1beta1").unwrap_or_default()
        };
        let machine = convert("RemoteMachine", json!({}), json!({"conditions": [{"type": "Ready"}]}));
        assert_eq!((&machine["status"], &machine["spec"]), (&json!({}), &json!({"sshKeyRef": {"name": ""}})));
        let provisioner = json!({"type": "cloud-config", "customUserDataRef": {"secretRef": {}}});
        let config = convert("K0sWorkerConfig", json!({"provisioner": provisioner}), Value::Null);
        assert_eq!(config["spec"], json!({}));
    }
}
