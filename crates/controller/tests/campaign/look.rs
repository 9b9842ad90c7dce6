//! What the world looks like around a machine: everything that must be the same after a disturbed run.

use crate::harness::World;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::collections::BTreeMap;

/// Facts by name, without times and identities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Look(BTreeMap<String, String>);

impl Look {
    /// What is said under a name; nothing where nothing is.
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn phase(&self) -> &str {
        self.fact("phase")
    }

    /// Whether the reclaim agent is armed and told.
    pub(crate) fn is_armed(&self) -> bool {
        self.0.contains_key("node armed") && self.0.contains_key("agent config")
    }

    pub(crate) fn has_taint(&self, taint: &str) -> bool {
        self.fact("node taints").contains(taint)
    }

    /// Whether status says of the taints what stands on the Node.
    pub(crate) fn is_settled(&self) -> bool {
        self.fact("NodeTainted") == "True/Applied" && !self.0.contains_key("pending taints")
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn differs_from(&self, expected: &Self) -> String {
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(expected.0.keys()).collect();
        let differs = names.into_iter().filter(|name| self.0.get(*name) != expected.0.get(*name));
        let show =
            |name: &String| format!("{name}: \"{}\" and not \"{}\"", self.fact(name), expected.fact(name));
        differs.map(show).collect::<Vec<_>>().join("\n")
    }
}

/// Looks at machines, with one list of each kind.
pub(crate) async fn read<'a>(world: &World, machines: impl Iterator<Item = &'a str>) -> Vec<Look> {
    let names: Vec<&str> = machines.collect();
    let mut looks: BTreeMap<&str, Look> = names.iter().map(|name| (*name, Look::default())).collect();
    let all = ListParams::default();
    for machine in world.machines().list(&all).await.unwrap() {
        let Some(look) = looks.get_mut(machine.name_any().as_str()) else { continue };
        let mut put = |name: &str, value: String| drop(look.0.insert(name.to_owned(), value));
        let status = machine.status.clone().unwrap_or_default();
        put("phase", status.phase.unwrap_or_default());
        put("enabled", machine.spec.schedule.enabled.to_string());
        put("finalizers", machine.finalizers().join(" "));
        put("is observed", (status.observed_generation == machine.metadata.generation).to_string());
        for condition in status.conditions {
            // What Cluster API says is its own; and no agent runs here, which is told after a minute.
            if !matches!(condition.type_.as_str(), "MachineReady" | "ReclaimAgent") {
                put(&condition.type_, format!("{}/{}", condition.status, condition.reason));
            }
        }
        let taints = |all: &[fivespot_api::NodeTaint]| {
            let one =
                |it: &fivespot_api::NodeTaint| format!("{}={}", it.key, it.value.clone().unwrap_or_default());
            all.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        put("applied taints", taints(&status.applied_node_taints));
        if !status.pending_node_taints.is_empty() {
            put("pending taints", taints(&status.pending_node_taints));
        }
        put("exit", status.shutdown.is_some().to_string());
        if let Some(reclaim) = status.reclaim {
            put(
                "reclaim",
                format!(
                    "hold {} disabled {} over {}",
                    reclaim.hold,
                    reclaim.disabled,
                    reclaim.accepted_at.is_none()
                ),
            );
        }
    }
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        for object in world.objects(kind).list(&all).await.unwrap() {
            if let Some(look) = looks.get_mut(object.name_any().as_str()) {
                let goes = if object.metadata.deletion_timestamp.is_some() { "going" } else { "there" };
                look.0.insert(kind.to_owned(), goes.to_owned());
            }
        }
    }
    let prefix = world.hosts.node_name("");
    for node in world.nodes().list(&all).await.unwrap() {
        let name = node.name_any();
        let machine = name.strip_prefix(&prefix).unwrap_or_default();
        if let Some(look) = looks.get_mut(machine) {
            look.read_node(&node);
        }
    }
    let configs: Api<ConfigMap> = Api::namespaced(world.workload.clone(), "5spot-system");
    for config in configs.list(&all).await.unwrap() {
        let name = config.name_any();
        let machine = name.strip_prefix(&format!("reclaim-agent-{prefix}")).unwrap_or_default();
        if let Some(look) = looks.get_mut(machine) {
            let text = config.data.unwrap_or_default().remove("reclaim.toml").unwrap_or_default();
            look.0.insert("agent config".to_owned(), text);
        }
    }
    let pods: Api<Pod> = world.pods();
    for pod in pods.list(&all).await.unwrap() {
        let name = pod.name_any();
        if let Some(look) = name.strip_suffix("-pod").and_then(|machine| looks.get_mut(machine)) {
            look.0.insert("pod".to_owned(), "there".to_owned());
        }
    }
    names.iter().map(|name| looks.remove(name).unwrap_or_default()).collect()
}

impl Look {
    fn read_node(&mut self, node: &Node) {
        let mut put = |name: &str, value: String| drop(self.0.insert(name.to_owned(), value));
        let spec = node.spec.clone().unwrap_or_default();
        let ours = |key: &str| !key.contains("kubernetes.io/");
        let taints = spec.taints.unwrap_or_default();
        let taints = taints.iter().filter(|it| ours(&it.key));
        let taints = taints.map(|it| format!("{}={}", it.key, it.value.clone().unwrap_or_default()));
        let mut taints: Vec<String> = taints.collect();
        taints.sort();
        put("node taints", taints.join(" "));
        put("node cordoned", spec.unschedulable.unwrap_or_default().to_string());
        for (key, value) in node.annotations() {
            match key.strip_prefix("5spot.finos.org/") {
                Some("reclaim-armed-for") => put("node armed", "yes".to_owned()),
                Some("reclaim-requested-at") => put("node request", "yes".to_owned()),
                Some(name) => put(&format!("node {name}"), value.clone()),
                None => {}
            }
        }
    }
}
