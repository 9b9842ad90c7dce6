//! A ScheduledMachine as a file, read as strictly as the API server reads it.
//!
//! Our types forgive, since they read what is stored. A file that a person wrote is not stored yet: here a field
//! that does not exist, a value of the wrong type and a missing field are errors, found with the very schema that
//! the server uses, and the rules follow.

use crate::{ScheduledMachine, scheduled_machine_crd};
use fivespot_core::field::{Invalid, Problems};
use fivespot_core::intent::Intent;
use fivespot_core::name;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// The schema of a whole object. Made once: it is the same every time, and takes milliseconds.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let crd = json!(scheduled_machine_crd());
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").cloned().unwrap_or_default()
});

/// Reads an object that is a ScheduledMachine by its kind: the object and the wish it is, or all errors that the
/// API server would name, and those it cannot know, such as a time zone that does not exist.
pub fn read_manifest(object: &Value) -> Result<(ScheduledMachine, Intent), Invalid> {
    let mut problems = Problems::default();
    let mut object = object.clone();
    // The server takes the status from nobody but the controller: what a file says there is dropped.
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    normalize(&mut object, &SCHEMA);
    check_envelope(&mut problems, &object);
    check_shape(&mut problems, "", &object, &SCHEMA);
    let machine = (problems.is_empty()).then(|| serde_json::from_value::<ScheduledMachine>(object));
    let mut machine = match machine.transpose() {
        Ok(Some(machine)) => machine,
        Ok(None) => return problems.finish(None),
        Err(error) => {
            problems.note("", error);
            return problems.finish(None);
        }
    };
    if machine.metadata.name.is_none() {
        machine.metadata.name.clone_from(&machine.metadata.generate_name);
    }
    if machine.metadata.namespace.is_none() {
        // Whoever applies the file chooses; the one an embedded object names is the one that would do.
        let spec = &machine.spec;
        let named = spec.bootstrap_spec.namespace.as_ref().or(spec.infrastructure_spec.namespace.as_ref());
        machine.metadata.namespace = Some(named.map_or("default", String::as_str).to_owned());
    }
    Intent::try_from(&machine).map(|intent| (machine, intent))
}

/// What every object has: its type, and metadata as Kubernetes defines them.
fn check_envelope(p: &mut Problems, object: &Value) {
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", "ScheduledMachine")] {
        if object[field] != wanted {
            p.note(field, format!("must be {wanted}"));
        }
    }
    let metadata = &object["metadata"];
    let Some(fields) = metadata.as_object() else {
        p.note("metadata", "is required");
        return;
    };
    // Here too a null is as good as no field.
    let given = || fields.iter().filter(|(_, value)| !value.is_null());
    for (name, value) in given() {
        let path = format!("metadata.{name}");
        match name.as_str() {
            "name" | "namespace" | "generateName" => match value.as_str() {
                Some(_) if name == "generateName" => {}
                Some(text) => {
                    p.keep(&path, name::object_name(text));
                }
                None => p.note(path, format!("must be of type string, not {}", type_of(value))),
            },
            "labels" | "annotations" => check_texts(p, &path, value),
            known if METADATA.contains(&known) => {}
            _ => p.note(path, "unknown field: remove it, or look for a misspelling"),
        }
    }
    if !given().any(|(name, _)| name == "name" || name == "generateName") {
        p.note("metadata.name", "is required");
    }
}

/// Fields of metadata beside those that are checked one by one; the server owns most of them.
const METADATA: [&str; 9] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

const API_VERSION: &str = "5spot.finos.org/v1alpha1";

/// Labels or annotations: texts under qualified keys.
fn check_texts(p: &mut Problems, path: &str, map: &Value) {
    let Some(entries) = map.as_object() else {
        p.note(path, format!("must be of type object, not {}", type_of(map)));
        return;
    };
    for (key, value) in entries {
        let path = format!("{path}[{key}]");
        p.keep(&path, name::qualified_key(key));
        match value.as_str() {
            Some(text) if path.starts_with("metadata.labels") => {
                p.keep(&path, name::label_value(text));
            }
            Some(_) => {}
            None => p.note(path, format!("must be of type string, not {}", type_of(value))),
        }
    }
}

/// Does what the server does before it looks: a null where none is allowed is as good as no field, and 2e1 is the
/// whole number 20.
fn normalize(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let of = |name: &str| schema["properties"].get(name).or(schema.get("additionalProperties"));
            fields.retain(|name, child| !(child.is_null() && of(name).is_some()));
            for (name, child) in fields {
                if let Some(known) = of(name) {
                    normalize(child, known);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(item, &schema["items"])),
        Value::Number(number) if schema["type"] == "integer" => {
            // A float without a fraction is written without a point.
            let whole = number.as_f64().and_then(|float| float.to_string().parse::<i64>().ok());
            *value = whole.map_or_else(|| value.clone(), Value::from);
        }
        _ => {}
    }
}

/// Compares types, names of fields and required fields with the schema. Bounds and rules are the intent's business.
fn check_shape(p: &mut Problems, path: &str, value: &Value, schema: &Value) {
    let expected = schema["type"].as_str().unwrap_or("object");
    let fits = match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => true,
    };
    if !fits {
        p.note(path, format!("must be of type {expected}, not {}", type_of(value)));
        return;
    }
    match value {
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    p.note(join(path, name), "is required");
                }
            }
            for (name, child) in fields {
                if let Some(known) = schema["properties"].get(name) {
                    check_shape(p, &join(path, name), child, known);
                } else if let Some(any) = schema.get("additionalProperties") {
                    check_shape(p, &format!("{path}[{name}]"), child, any);
                } else if !is_open(path, name, schema) {
                    p.note(join(path, name), "unknown field: remove it, or look for a misspelling");
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                check_shape(p, &format!("{path}[{i}]"), item, &schema["items"]);
            }
        }
        _ => {}
    }
}

/// Places whose content this schema does not describe: metadata is Kubernetes', an inner spec its provider's.
fn is_open(path: &str, name: &str, schema: &Value) -> bool {
    let is_envelope = path.is_empty() && matches!(name, "apiVersion" | "kind");
    // Metadata was looked at before.
    is_envelope || path == "metadata" || schema["x-kubernetes-preserve-unknown-fields"] == true
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
