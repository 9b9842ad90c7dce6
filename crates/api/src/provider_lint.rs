//! Embedded specs that the API server accepts and that k0smotron cannot use.
//!
//! 5-Spot passes embedded specs on unread, so a mistake in one shows when the window opens, at night. What is known of
//! the two kinds of k0smotron is checked here, before that, and only ever as a warning: a later release of the provider
//! may know more than this does. Other kinds are not looked at.

use crate::{EmbeddedObject, ScheduledMachineSpec};
use serde_json::{Map, Value};
use std::fmt;

/// Something in an embedded spec that keeps a machine from joining, or that the server would drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderFinding {
    /// Path of the field, from the root of the ScheduledMachine.
    pub path: String,
    /// What is wrong with it.
    pub problem: ProviderProblem,
}

/// What is wrong with a field of an embedded spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderProblem {
    /// A RemoteMachine names neither a key nor a pool nor a Job that could reach the host.
    NoKey,
    /// A RemoteMachine names neither an address nor a pool.
    NoHost,
    /// A version that is not one of k0s: k0smotron refuses it when the object is created.
    NotK0sVersion {
        /// What is written.
        version: String,
    },
    /// A field that this version of the kind does not have.
    OtherVersion {
        /// The version in which the field exists.
        exists_in: &'static str,
        /// The version that the spec asks for.
        written_for: String,
        /// What this version has in its place, if anything.
        instead: Option<&'static str>,
    },
}

impl fmt::Display for ProviderFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, problem } = self;
        write!(f, "{path}: ")?;
        match problem {
            ProviderProblem::NoKey => f.write_str(
                "a RemoteMachine with neither sshKeyRef nor pool nor provisionJob never joins, and its deletion hangs: \
                 write sshKeyRef: {name: SECRET}, SECRET being a Secret whose key \"value\" holds the private SSH key",
            ),
            ProviderProblem::NoHost => f.write_str(
                "a RemoteMachine with neither address nor pool never joins: write the address of the host",
            ),
            ProviderProblem::NotK0sVersion { version } => write!(
                f,
                "k0smotron refuses \"{version}\", which is not a version of k0s: write one such as v1.34.1+k0s.0"
            ),
            ProviderProblem::OtherVersion { exists_in, written_for, instead } => {
                write!(f, "{written_for} has no such field, so the API server would drop it: ")?;
                match instead {
                    Some(instead) => write!(f, "write {instead}, or use {exists_in}"),
                    None => write!(f, "use {exists_in}"),
                }
            }
        }
    }
}

/// A field that exists in one version of a kind alone.
struct VersionedField {
    name: &'static str,
    /// The version that has it.
    exists_in: &'static str,
    /// What the other version has in its place.
    instead: Option<&'static str>,
}

const WORKER_CONFIG: [VersionedField; 7] = [
    versioned("customUserDataRef", "v1beta1", Some("provisioner.customUserDataRef")),
    versioned("ignition", "v1beta1", Some("provisioner.ignition")),
    versioned("postStartCommands", "v1beta1", Some("postK0sCommands")),
    versioned("preStartCommands", "v1beta1", Some("preK0sCommands")),
    versioned("postK0sCommands", "v1beta2", Some("postStartCommands")),
    versioned("preK0sCommands", "v1beta2", Some("preStartCommands")),
    versioned("provisioner", "v1beta2", None),
];

const REMOTE_MACHINE: [VersionedField; 2] = [
    versioned("customCleanUpCommands", "v1beta1", Some("cleanUpCommands")),
    versioned("cleanUpCommands", "v1beta2", Some("customCleanUpCommands")),
];

const fn versioned(
    name: &'static str,
    exists_in: &'static str,
    instead: Option<&'static str>,
) -> VersionedField {
    VersionedField { name, exists_in, instead }
}

/// What k0smotron cannot use in the embedded specs of a ScheduledMachine: first the bootstrap object, then the
/// infrastructure object.
pub fn lint_provider_specs(spec: &ScheduledMachineSpec) -> Vec<ProviderFinding> {
    let (bootstrap, infrastructure) = (&spec.bootstrap_spec, &spec.infrastructure_spec);
    let mut findings = Vec::new();
    if let Some(version) = version_of(bootstrap, "bootstrap.cluster.x-k8s.io", "K0sWorkerConfig") {
        let path = "spec.bootstrapSpec.spec";
        findings.extend(not_k0s_version(&bootstrap.spec, path));
        findings.extend(of_other_version(&bootstrap.spec, path, version, &WORKER_CONFIG));
    }
    if let Some(version) = version_of(infrastructure, "infrastructure.cluster.x-k8s.io", "RemoteMachine") {
        let path = "spec.infrastructureSpec.spec";
        findings.extend(unreachable_host(&infrastructure.spec, path));
        findings.extend(of_other_version(&infrastructure.spec, path, version, &REMOTE_MACHINE));
    }
    findings
}

/// The version of an embedded object, if it is of this group and kind.
fn version_of<'a>(object: &'a EmbeddedObject, group: &str, kind: &str) -> Option<&'a str> {
    let (of, version) = object.api_version.split_once('/')?;
    (of == group && object.kind == kind).then_some(version)
}

fn not_k0s_version(spec: &Map<String, Value>, path: &str) -> Option<ProviderFinding> {
    let version = spec.get("version")?.as_str()?;
    (!version.contains("+k0s.")).then(|| ProviderFinding {
        path: format!("{path}.version"),
        problem: ProviderProblem::NotK0sVersion { version: version.to_owned() },
    })
}

/// What keeps k0smotron from reaching the host. A pool brings addresses and keys of its own, a Job its own way in.
fn unreachable_host(spec: &Map<String, Value>, path: &str) -> Vec<ProviderFinding> {
    let is_written =
        |field: Option<&Value>| field.and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let has_pool = is_written(spec.get("pool"));
    let has_job = spec.get("provisionJob").is_some_and(Value::is_object);
    let has_key = is_written(spec.get("sshKeyRef").and_then(|key| key.get("name")));
    let mut findings = Vec::new();
    if !has_pool && !is_written(spec.get("address")) {
        findings.push(ProviderFinding { path: format!("{path}.address"), problem: ProviderProblem::NoHost });
    }
    if !has_pool && !has_job && !has_key {
        findings.push(ProviderFinding { path: format!("{path}.sshKeyRef"), problem: ProviderProblem::NoKey });
    }
    findings
}

fn of_other_version(
    spec: &Map<String, Value>,
    path: &str,
    version: &str,
    fields: &[VersionedField],
) -> Vec<ProviderFinding> {
    // Of a version that is neither of the two, nothing is known here.
    if !fields.iter().any(|field| field.exists_in == version) {
        return Vec::new();
    }
    let is_lost = |field: &&VersionedField| field.exists_in != version && spec.contains_key(field.name);
    let finding = |field: &VersionedField| ProviderFinding {
        path: format!("{path}.{}", field.name),
        problem: ProviderProblem::OtherVersion {
            exists_in: field.exists_in,
            written_for: version.to_owned(),
            instead: field.instead,
        },
    };
    fields.iter().filter(is_lost).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The paths that are named for these two specs, in this version.
    fn check(version: &str, bootstrap: &Value, infrastructure: &Value, paths: &[&str]) {
        let spec: ScheduledMachineSpec = serde_json::from_value(json!({
            "bootstrapSpec": {
                "apiVersion": format!("bootstrap.cluster.x-k8s.io/{version}"),
                "kind": "K0sWorkerConfig", "spec": bootstrap,
            },
            "infrastructureSpec": {
                "apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"),
                "kind": "RemoteMachine", "spec": infrastructure,
            },
        }))
        .unwrap();
        let found = lint_provider_specs(&spec);
        let found: Vec<&str> = found.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(found, paths);
    }

    const KEY: &str = "spec.infrastructureSpec.spec.sshKeyRef";

    #[test]
    fn a_remote_machine_needs_a_way_to_its_host() {
        let with = |spec: Value, paths: &[&str]| check("v1beta2", &json!({}), &spec, paths);
        with(json!({"address": "192.0.2.1"}), &[KEY]);
        with(json!({"address": "192.0.2.1", "sshKeyRef": {}}), &[KEY]);
        with(json!({"address": "192.0.2.1", "sshKeyRef": {"name": ""}}), &[KEY]);
        with(json!({"address": "192.0.2.1", "sshKeyRef": null, "pool": ""}), &[KEY]);
        with(json!({}), &["spec.infrastructureSpec.spec.address", KEY]);
        with(json!({"address": "192.0.2.1", "sshKeyRef": {"name": "key"}}), &[]);
        with(json!({"address": "192.0.2.1", "provisionJob": {}}), &[]);
        with(json!({"pool": "desks"}), &[]);
    }

    #[test]
    fn a_version_is_one_of_k0s() {
        let reached = json!({"pool": "desks"});
        for (version, is_found) in
            [("v1.34.1+k0s.0", false), ("v1.34.1-k0s.0", true), ("v1.34.1", true), ("", true)]
        {
            let paths: &[&str] = if is_found { &["spec.bootstrapSpec.spec.version"] } else { &[] };
            check("v1beta2", &json!({"version": version}), &reached, paths);
        }
        check("v1beta2", &json!({}), &reached, &[]);
    }

    #[test]
    fn a_field_of_the_other_version_is_named() {
        let bootstrap = json!({"preStartCommands": [], "preK0sCommands": [], "provisioner": {}});
        let infrastructure = json!({"pool": "desks", "customCleanUpCommands": [], "cleanUpCommands": []});
        let both = |version, paths| check(version, &bootstrap, &infrastructure, paths);
        both(
            "v1beta2",
            &[
                "spec.bootstrapSpec.spec.preStartCommands",
                "spec.infrastructureSpec.spec.customCleanUpCommands",
            ],
        );
        both(
            "v1beta1",
            &[
                "spec.bootstrapSpec.spec.preK0sCommands",
                "spec.bootstrapSpec.spec.provisioner",
                "spec.infrastructureSpec.spec.cleanUpCommands",
            ],
        );
        both("v1", &[]);
    }

    #[test]
    fn other_kinds_are_not_looked_at() {
        let spec: ScheduledMachineSpec = serde_json::from_value(json!({
            "bootstrapSpec": {"apiVersion": "k0smotron.io/v1beta1", "kind": "K0sWorkerConfig", "spec": {"version": "1"}},
            "infrastructureSpec": {
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Machine", "spec": {},
            },
        }))
        .unwrap();
        assert_eq!(lint_provider_specs(&spec), []);
        assert_eq!(lint_provider_specs(&ScheduledMachineSpec::default()), []);
    }
}
